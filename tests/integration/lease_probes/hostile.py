"""Helpers of the probes. Standard library only, because a lease may have nothing else."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
FACTS = {}
PROBES = {}
MB = 1 << 20


def probe(function):
    PROBES[function.__name__] = function
    return function


def call(number, *args):
    """A system call, by its number on x86_64 or aarch64."""
    number = number[0 if os.uname().machine == "x86_64" else 1] if isinstance(number, tuple) else number
    answer = LIBC.syscall(number, *(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def in_child(work):
    """Run it in a process of its own; its failure is ours."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise OSError(f"the process ended with {status}")


def fill(path, size):
    try:
        with Path(path).open("wb") as file:
            for _ in range(size // MB):
                file.write(os.urandom(MB))
    finally:
        Path(path).unlink(missing_ok=True)
