"""A preloaded interpreter that runs scripts in forks of itself, one after the other, and writes down all that is seen of them.

`python -u -c "__import__('warm_parent').main()" CONTROL CASES RESULTS`, where CONTROL is a socket as an engine gives a prefork parent.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from pathlib import Path

from shoal.agent.prefork import parent as prefork_parent
from shoal.agent.prefork import script
from shoal.agent.prefork import worker as prefork_worker


def main() -> None:
    env = prefork_parent.restore_environment()
    prefork_parent.preload(int(sys.argv[1]), ("numpy.random", "torch.utils.data"))
    cases, results = json.loads(Path(sys.argv[2]).read_text()), []
    for case in cases:
        planted = prefork_worker.fork_waiting_worker(env)
        if isinstance(planted, script.Script):
            script.run(planted)
            return
        results.append(grow(planted, case))
    Path(sys.argv[3]).write_text(json.dumps(results))


def grow(planted: prefork_worker.WaitingWorker, case: dict[str, object]) -> tuple[str, str, int]:
    """(standard output, standard error, exit code)"""
    control, theirs = socket.socketpair()
    (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
    workers = [{"argv": case["argv"], "env": case["env"]}]
    order = {
        "cwd": case["cwd"],
        "workers": workers,
        "own_env": dict(os.environ),
        "marks": ["MARK"],
        "target": None,
        "holder": 0,
    }
    planted.start(order, theirs.fileno(), 2, [out_w, err_w])
    theirs.close()
    for fd in (out_w, err_w):
        os.close(fd)
    texts = {out_r: b"", err_r: b""}
    said, open_ends = b"", [out_r, err_r, control.fileno()]
    while open_ends:
        for fd in select.select(open_ends, [], [])[0]:
            piece = os.read(fd, 1 << 16)
            if fd == control.fileno():
                said += piece
                if b"exit 0" in piece:
                    control.send(b"K")
            else:
                texts[fd] += piece
            if not piece:
                open_ends.remove(fd)
    for fd in texts:
        os.close(fd)
    control.close()
    status = int(next(line for line in said.decode().splitlines() if line.startswith("exit ")).split()[2])
    return texts[out_r].decode(), texts[err_r].decode(), os.waitstatus_to_exitcode(status)
