"""First process of a host (see `hosts.py`): mounts the host's own files, starts sshd, reaps orphans.

A bare interpreter runs this file with the host's config. It prints its progress to stdout, line by line.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    socket.sethostname(config["hostname"])
    for source, target in config["files"]:
        _mount("--bind", source, os.path.realpath(target))
    for target in config["empty"]:
        if Path(target).is_dir():
            _mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", target)
    Path("/dev/shm").chmod(0o1777)
    Path("/run/sshd").mkdir(mode=0o755)
    print("namespaces", flush=True)
    if sys.stdin.readline().strip() != "plugged":
        return
    subprocess.Popen(config["sshd"], stdin=subprocess.DEVNULL, start_new_session=True)
    print("sshd", flush=True)
    while True:
        with suppress(ChildProcessError):
            os.wait()


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


if __name__ == "__main__":
    main()
