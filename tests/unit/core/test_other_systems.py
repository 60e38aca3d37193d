"""Client, SDK, store and command line can be imported where there is no fcntl, resource, pwd, grp or termios: on Windows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from shoal.cli.shared.errors import report
from shoal.core import system

_IMPORT_ALL = """
import importlib, json, os, pkgutil, signal, sys
POSIX = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in POSIX | {"torch"}:  # torch only because it takes long to import
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in POSIX:
    sys.modules.pop(name, None)
for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "O_NONBLOCK", "getuid", "geteuid", "fork", "sched_getaffinity", "killpg", "setsid"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGCHLD"):
    delattr(signal, name)
sys.meta_path.insert(0, Missing())
import shoal
failed, done = [], 0
for package in ("core", "client", "store", "check", "notebooks", "data", "sdk", "cli", "tune", "api"):
    root = importlib.import_module(f"shoal.{package}")
    for found in pkgutil.walk_packages(root.__path__, f"shoal.{package}."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
            done += 1
        except ModuleNotFoundError as error:
            if error.name in POSIX:
                failed.append([found.name, error.name])
        except Exception as error:
            failed.append([found.name, repr(error)])
print(json.dumps([done, failed]))
"""
STARTS_PROCESSES_HERE = {
    "shoal.cli.launch_command.commands", "shoal.cli.replay.start", "shoal.cli.run.local", "shoal.cli.swarm.peer",
    "shoal.cli.engine", "shoal.sdk.speed",
}  # fmt: skip
"""Modules of commands that start workers on this machine, or set up a server's engines: imported when they run."""


def test_everything_but_commands_that_start_workers_here_is_imported_without_posix_modules() -> None:
    found = subprocess.run([sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True, check=True)
    done, failed = json.loads(found.stdout)
    assert done > 200
    assert {name for name, _ in failed} <= STARTS_PROCESSES_HERE, failed


def test_a_command_that_needs_linux_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ModuleNotFoundError("No module named 'fcntl'", name="fcntl")) == 2
    said = capsys.readouterr().err
    assert "needs Linux" in said and "shoal login" in said


def test_without_fcntl_files_are_locked_by_windows_means(monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile
    import types

    calls: list[tuple[int, int]] = []

    def locking(fd: int, mode: int, size: int) -> None:
        calls.append((mode, size))
        if mode == 2 and len(calls) > 1:
            raise OSError(13, "held")

    monkeypatch.setattr(system, "fcntl", None)
    monkeypatch.setitem(
        sys.modules, "msvcrt", types.SimpleNamespace(LK_UNLCK=0, LK_LOCK=1, LK_NBLCK=2, locking=locking)
    )
    with tempfile.TemporaryFile() as file:
        system.flock(file, system.LOCK_EX | system.LOCK_NB)
        with pytest.raises(BlockingIOError):
            system.flock(file.fileno(), system.LOCK_SH | system.LOCK_NB)
        system.flock(file, system.LOCK_UN)
    assert calls == [(2, 1), (2, 1), (0, 1)]
