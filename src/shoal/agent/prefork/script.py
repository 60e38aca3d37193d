"""Runs a script in a fork of a preloaded interpreter, as `python -u script.py` would run it in a new one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from shoal.agent.prefork import process_title
from shoal.agent.workers.runtime import STARTUP
from shoal.core.device_check import broken


class Script(NamedTuple):
    """A script to run in a forked worker."""

    argv: list[str]
    """Command line as for a new process: interpreter, -u, script, its arguments."""
    env: dict[str, str]
    marks: list[str]
    """Names of the variables that must be visible in /proc, so that recovery finds the process."""


def run(script: Script) -> None:
    """Run the script to its end. Exceptions are printed and the exit code is set as by the interpreter itself."""
    process_title.set_env(script.env)
    process_title.show(script.argv, script.env, script.marks)
    _start_cold_without_device(script)
    forget_the_past()
    words = script.argv[2:]
    sys.argv, sys.orig_argv = words, script.argv
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))  # noqa: PTH120
    libc = ctypes.CDLL(None)
    skip_unloading_at_exit(libc)
    _run_startup(script.env)
    # This is the function that the interpreter itself uses for its main script, so tracebacks and SystemExit work the same.
    libc.fopen.restype = ctypes.c_void_p
    path = os.fsencode(os.path.join(os.getcwd(), words[0]))  # noqa: PTH109, PTH118
    file = ctypes.c_void_p(libc.fopen(path, b"rb"))
    if ctypes.pythonapi.PyRun_SimpleFileExFlags(file, path, 1, None):
        _fail()


def _start_cold_without_device(script: Script) -> None:
    """Become a new interpreter if torch cannot use the promised device; that one ends when the script imports torch."""
    torch = sys.modules.get("torch")
    if torch is not None and broken(torch, script.env) is not None:
        os.execve(script.argv[0], script.argv, script.env)  # noqa: S606


def _run_startup(env: dict[str, str]) -> None:
    """Run the start-up code of the workers' interpreters, if this one would have it on its path."""
    if env.get("PYTHONPATH", "").partition(os.pathsep)[0] != str(STARTUP):
        return
    sys.path.insert(1, str(STARTUP))
    file = STARTUP / "sitecustomize.py"
    exec(compile(file.read_bytes(), file, "exec"), {"__name__": "_shoal_startup", "__file__": str(file)})  # noqa: S102


def skip_unloading_at_exit(libc: ctypes.CDLL) -> None:
    """Register exit handlers that end the process without unloading the preloaded libraries.

    Unloading would copy most of their shared memory only to free it. C's exit handlers run in reverse order: first those of the
    libraries that the script loads, then the flush of C's streams registered here, then `_exit`.
    """
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)


def _fail() -> None:
    """End with exit code 1, or by SIGINT after a KeyboardInterrupt; the interpreter decides which, but not on a SystemExit."""
    sys.excepthook = lambda *_: None
    raise RuntimeError("the error was printed already")


def forget_the_past() -> None:
    """Reset the state that every new process sets up for itself: signals, random generators, temporary folder, start time."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_IGN)
    loaded: dict[str, Any] = dict(sys.modules)
    if random := loaded.get("numpy.random"):
        random.seed()  # Python's own generator is reseeded in every fork
    if torch := loaded.get("torch"):
        torch.default_generator.seed()
    if process := loaded.get("multiprocessing.process"):
        process.ORIGINAL_DIR = str(Path.cwd())
        process.current_process().authkey = os.urandom(32)
    if tempfile := loaded.get("tempfile"):
        tempfile.tempdir = None
    if logging := loaded.get("logging"):
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()
