"""The prefork parent: it has imported what most scripts import and forks agents, which fork their worker.

An engine starts it as `python -u -c …` with the descriptor of a control socket. Each request is the path of a launch file and
one end of a new socket, over which the forked agent sends its pid and waits for `g`. The process ends after IDLE_S without
requests or when the engine has ended.

Why this is safe: the process has one thread, runs no user code and knows no secret, so a fork copies no locked lock and
nothing that a job must not see. The engine and the new agent shake hands before the agent does anything: if the engine timed
out or died, the agent reads the end of its socket and exits, so a node never gets two agents. If this process dies before or
after a fork, agents continue on their own, and the engine reads the end of a socket and starts agents by their command line.
Ended agents are reaped by the kernel (SIGCHLD is ignored). Packages that change on disk make the process end instead of
forking outdated modules.
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

from shoal.agent.prefork import process_title, script, worker

PROGRAM = f"__import__({__name__!r}, fromlist='.').main()"
"""Program text for `python -c`. It defines no name in the main module, which becomes that of the script."""
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
    "shoal.agent.node.node",
    "shoal.agent.node.inventory",
    "shoal.agent.data.checkpoint_uploader",
    "shoal.agent.main",
    "shoal.agent.devices.system_metrics",
    "shoal.agent.prefork.warm",
    "shoal.store.codec",
    "shoal.store.pack",
)
PRELOADED = (*_FOR_SCRIPTS, *_FOR_AGENTS)
"""Modules that the prefork parent imports before its first fork."""


def main() -> None:
    """Run the prefork parent, the agents forked from it, and their workers.

    A worker returns from here to end as Python does.
    """
    env = restore_environment()
    preload(int(sys.argv[1]))
    # Imported modules may set variables, which a script that does not import them must not see.
    process_title.set_env(env)
    launch_file = _serve(int(sys.argv[1]))
    forked = worker.fork_waiting_worker(env)
    if isinstance(forked, script.Script):
        script.run(forked)
        return
    from shoal.agent.main import run

    code = run(launch_file, forked)
    # Skip the interpreter's shutdown: freeing all preloaded modules would take as long as the agent's own work.
    os._exit(code)


def restore_environment() -> dict[str, str]:
    """Reset the environment and process title of this process; return the environment it was started with."""
    # Keep the locale that Python chose at start-up, as it would choose it for the script.
    env, chosen = process_title.initial_env(), os.environ.get("LC_CTYPE")
    process_title.set_env(env | ({"LC_CTYPE": chosen} if chosen else {}))
    process_title.show([sys.executable, "-m", __name__], os.environ)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended agents
    return dict(os.environ)


def preload(control: int, names: tuple[str, ...] = PRELOADED) -> None:
    """Import the modules; SIGIO ends this process if the engine closes the control socket meanwhile."""
    fcntl.fcntl(control, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(control, fcntl.F_GETFL)
    fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    for name in names:
        with contextlib.suppress(Exception):  # a script that imports it gets the error itself
            importlib.import_module(name)
    fcntl.fcntl(control, fcntl.F_SETFL, flags)
    gc.collect()
    # Memory pages stay shared with the forks as long as no garbage collection writes to their objects.
    gc.freeze()


def _serve(fd: int) -> Path:
    """Serve requests until the end of this process. Returns only in a forked agent, with the path of its launch file."""
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
            _shake_hands(fds[0])
            launch_file = Path(os.fsdecode(request))
            process_title.show([sys.executable, "-m", "shoal.agent", str(launch_file)], os.environ)
            os.chdir(launch_file.parent)
            return launch_file
        os.close(fds[0])


def _shake_hands(fd: int) -> None:
    """Send our pid to the engine and wait for its go-ahead; exit if it has given up, because it then starts another agent."""
    with socket.socket(fileno=fd) as engine:
        engine.sendall(os.getpid().to_bytes(8, "big"))
        if engine.recv(1) != GO:
            os._exit(0)


def _packages() -> list[int]:
    """Return the modification times of the package folders; they change when a package is installed or removed."""
    folders = [p for p in sys.path if p.endswith(("site-packages", "dist-packages")) and os.path.isdir(p)]  # noqa: PTH112
    return [os.stat(folder).st_mtime_ns for folder in folders]  # noqa: PTH116
