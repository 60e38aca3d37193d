"""Runs a script in a process that was forked from a preloaded interpreter, as `python -u script.py` would have in a new one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from shoal.agent import guise
from shoal.core.device_promise import broken


class Script(NamedTuple):
    argv: list[str]
    """As for a new process: interpreter, -u, script, its arguments."""
    env: dict[str, str]
    marks: list[str]
    """Variables by which the process must be found."""


def run(script: Script) -> None:
    """To the end of the script. Its exceptions are printed and its exit code is set as the interpreter itself does, on return."""
    guise.set_env(script.env)
    guise.show(script.argv, script.env, script.marks)
    _start_cold_without_device(script)
    forget_the_past()
    words = script.argv[2:]
    sys.argv, sys.orig_argv = words, script.argv
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))  # noqa: PTH120
    libc = ctypes.CDLL(None)
    leave_the_preloaded(libc)
    # By the very function the interpreter uses for its first script: tracebacks, SystemExit and all the rest are its own.
    libc.fopen.restype = ctypes.c_void_p
    path = os.fsencode(os.path.join(os.getcwd(), words[0]))  # noqa: PTH109, PTH118
    file = ctypes.c_void_p(libc.fopen(path, b"rb"))
    if ctypes.pythonapi.PyRun_SimpleFileExFlags(file, path, 1, None):
        _fail()


def _start_cold_without_device(script: Script) -> None:
    """Become a new interpreter if torch cannot use the promised device: it ends where the script imports torch, if ever."""
    torch = sys.modules.get("torch")
    if torch is not None and broken(torch, script.env) is not None:
        os.execve(script.argv[0], script.argv, script.env)  # noqa: S606


def leave_the_preloaded(libc: ctypes.CDLL) -> None:
    """At the very end, do not take down the libraries we were born with: it would copy most of their memory only to free it.

    C's exit handlers run last first: those of all that the script loads, then a flush of C's streams, then the end.
    """
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


def _fail() -> None:
    """End with exit code 1, or by SIGINT after a KeyboardInterrupt: the interpreter knows which, unless it sees a SystemExit."""
    sys.excepthook = lambda *_: None
    raise RuntimeError("told already")


def forget_the_past() -> None:
    """What was decided at the birth of the nursery, and is decided anew in every new process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_IGN)
    loaded: dict[str, Any] = dict(sys.modules)
    if random := loaded.get("numpy.random"):
        random.seed()  # Python's own is seeded anew in every fork
    if torch := loaded.get("torch"):
        torch.default_generator.seed()
    if process := loaded.get("multiprocessing.process"):
        process.ORIGINAL_DIR = str(Path.cwd())
        process.current_process().authkey = os.urandom(32)
    if tempfile := loaded.get("tempfile"):
        tempfile.tempdir = None
    if logging := loaded.get("logging"):
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
