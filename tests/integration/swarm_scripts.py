"""Runs scripts as `python SCRIPT …` would, each in a process forked from one that has loaded torch, transformers and datasets.

For every JSON line on stdin (`name`, `command`, `folder`, `env`, `log`) it says the `pid` of the process and, later, its `exit`
code. Neither hivemind nor Shoal are loaded here: in which order a script loads them is what its tests are about.
"""

import json
import os
import runpy
import signal
import sys
import tempfile
from pathlib import Path

import torch._dynamo
from datasets import Dataset, load_from_disk  # noqa: F401
from transformers import (  # noqa: F401
    AutoModelForMaskedLM,
    BertForMaskedLM,
    BertTokenizerFast,
    DataCollatorForLanguageModeling,
    Trainer,
)

torch.set_num_threads(1)
started: dict[int, str] = {}


def main() -> None:
    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        asked = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            become(asked)
            return
        started[pid] = asked["name"]
        print(json.dumps({"name": asked["name"], "pid": pid}), flush=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def reap(*_: object) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        os.write(1, json.dumps({"name": started[pid], "exit": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


def become(asked: dict) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.setsid()
    for number, file in enumerate(
        [os.open(os.devnull, os.O_RDONLY), *[os.open(asked["log"], os.O_WRONLY | os.O_APPEND)] * 2]
    ):
        os.dup2(file, number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None
    first, *rest = asked["command"]
    if first == "-m":
        sys.argv, sys.path[0] = rest, asked["folder"]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
