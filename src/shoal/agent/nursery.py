"""A process that has loaded what most scripts import, and forks agents, which fork their worker: no import is paid twice.

Started by an engine as `python -u -c …`, it reads requests from the socket whose descriptor is its argument: a launch
file's path, and the engine's end to a socket over which the new agent shows its pid and waits for `g`. It has no user
code, no thread and no secret, ends when nobody has asked for a minute or the engine is gone, and nothing depends on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
from pathlib import Path

from shoal.agent import guise, script, seed

PROGRAM = f"__import__({__name__!r}, fromlist='.').main()"
"""Leaves no name in the main module, which will be the script's."""
READY = b"r"
GO = b"g"
IDLE_S = 60.0
LONGEST_REQUEST = 4096
_FOR_SCRIPTS = (
    "numpy",
    "numpy.random",
    "torch",
    "torch._dynamo",  # as large as torch itself, and imported by the first optimizer
    "torch.utils.data",
    "shoal.sdk.start",
    "shoal.sdk.run",
    "shoal.sdk.trial",
)
_FOR_AGENTS = (
    "http.client",
    "shoal.agent.attempt",
    "shoal.agent.inventory",
    "shoal.agent.keeper",
    "shoal.agent.main",
    "shoal.agent.samples",
    "shoal.agent.warm",
    "shoal.store.codec",
    "shoal.store.pack",
)


def main() -> None:
    """Of the nursery, of the agents forked from it and of their workers, each of which returns from here to end as Python does."""
    env = settle()
    preload(int(sys.argv[1]))
    # What is imported may set variables, which are not for those who have not imported it.
    guise.set_env(env)
    launch_file = _serve(int(sys.argv[1]))
    planted = seed.plant(env)
    if isinstance(planted, script.Script):
        script.run(planted)
        return
    from shoal.agent.main import run

    code = run(launch_file, planted)
    # Taking down all that was loaded, of which an agent has used nothing, would cost as much as its whole work.
    os._exit(code)


def settle() -> dict[str, str]:
    """Returns the environment we were started with."""
    # Python may have chosen a locale by itself, as it would for the script.
    env, chosen = guise.initial_env(), os.environ.get("LC_CTYPE")
    guise.set_env(env | ({"LC_CTYPE": chosen} if chosen else {}))
    guise.show([sys.executable, "-m", __name__], os.environ)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no agent of ours stays a zombie
    return dict(os.environ)


def preload(control: int, names: tuple[str, ...] = (*_FOR_SCRIPTS, *_FOR_AGENTS)) -> None:
    # Until we look at the socket ourselves, its end is ours.
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    for name in names:
        with contextlib.suppress(Exception):  # a script that wants it is told
            importlib.import_module(name)
    fcntl.fcntl(control, fcntl.F_SETFL, flags)
    gc.collect()
    # Pages that hold objects stay shared with the forks as long as no collection touches them.
    gc.freeze()


def _serve(fd: int) -> Path:
    """Returns only in an agent, with its launch file."""
    control = socket.socket(fileno=fd)
    control.sendall(READY)
    packages = _packages()
    while True:
        if not select.select([control], [], [], IDLE_S)[0]:
            os._exit(0)
        request, fds, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 1)
        if not request or packages != _packages():
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            _show_ourselves(fds[0])
            launch_file = Path(os.fsdecode(request))
            guise.show([sys.executable, "-m", "shoal.agent", str(launch_file)], os.environ)
            os.chdir(launch_file.parent)
            return launch_file
        os.close(fds[0])


def _show_ourselves(fd: int) -> None:
    """The engine must know us before we do anything: had it given up on us, somebody else would run the node."""
    with socket.socket(fileno=fd) as engine:
        engine.sendall(os.getpid().to_bytes(8, "big"))
        if engine.recv(1) != GO:
            os._exit(0)


def _packages() -> list[int]:
    """Changes when something is installed or removed: what we have loaded may then be of yesterday."""
    folders = [p for p in sys.path if p.endswith(("site-packages", "dist-packages")) and os.path.isdir(p)]  # noqa: PTH112
    return [os.stat(folder).st_mtime_ns for folder in folders]  # noqa: PTH116
