"""The worker of an interactive session: it keeps the job's place, environment and data until it is stopped. People work beside it."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready for whoever comes in", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
