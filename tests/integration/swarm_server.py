"""The part of a server that watches keepers, as processes to be killed: `python swarm_server.py KEEPER`.

For every line on its stdin, a home, it forks such a server, which says its process id once it is up: Shoal's server is loaded once.
"""

import os
import signal
import sys
from pathlib import Path

from shoal.server.swarms.watch import SwarmWatch
from shoal.testing.server import make_context


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed ones are not waited for
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(Path(line.strip()))


def serve(home: Path) -> None:
    watch = SwarmWatch(make_context(home), "http://127.0.0.1:1", command=[sys.executable, sys.argv[1]])
    watch.start()
    print(os.getpid(), flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
