"""The worker of an interactive session: it keeps the job's slots, environment and data until it is stopped.

It does nothing itself; people start their own processes next to it.
"""

from __future__ import annotations

import signal
import sys


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("The session is ready.", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
