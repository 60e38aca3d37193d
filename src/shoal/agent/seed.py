"""A worker-to-be: forked off an agent at its birth, before the agent has threads or knows a secret, with all the nursery has loaded.

When the worker is to start, the seed goes into the sandbox and becomes what inner.py is to a worker that is started by its
command line; its child is the worker. Unless it is used it ends with the agent's end of its socket.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from shoal.agent import guise, inner, namespaces
from shoal.agent.limits import set_limits
from shoal.agent.script import Script

_FDS = 4
_ITSELF = [sys.executable, "-m", __name__]
"""As it stands in a list of processes."""


class Seed:
    """The agent's side."""

    def __init__(self, end: socket.socket, env: dict[str, str]):
        self._end = end
        self.env = env
        """The environment its interpreter was started with."""

    def grow(self, order: dict[str, object], control: int, own: int, out: int, err: int) -> None:
        """`order`: {cwd, argv, env, marks, own_env, target, holder}. From then on it speaks through `control`, as inner.py does."""
        data = marshal.dumps(order)
        socket.send_fds(self._end, [len(data).to_bytes(8, "big")], [control, own, out, err])
        self._end.sendall(data)
        self._end.close()

    def discard(self) -> None:
        self._end.close()


def plant(env: dict[str, str]) -> Seed | Script:
    """Fork a seed: the caller goes on with a Seed. In another process, maybe, this returns once more, with the script to run."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return Seed(ours, env)
    try:
        ours.close()
        guise.show(_ITSELF, os.environ)
        header, fds, _, _ = socket.recv_fds(theirs, 8, _FDS)
        if not header:
            os._exit(0)
        order = marshal.loads(inner.exactly(theirs.fileno(), int.from_bytes(header, "big")))  # noqa: S302
        theirs.close()
        return _grow(order, *fds)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _grow(order: dict[str, Any], control: int, own: int, out: int, err: int) -> Script:
    """Returns only in the worker."""
    os.dup2(own, 1)
    os.dup2(own, 2)
    os.close(own)
    set_limits()
    guise.set_env(order["own_env"])
    guise.show(_ITSELF, order["own_env"], order["marks"])
    try:
        pid = _move_in(order["target"], order["holder"], (control, out, err))
    except (OSError, RuntimeError) as error:
        inner.say(control, f"cannot: {error}\n")
        os._exit(1)
    wake_r = inner.listen()
    os.chdir(order["cwd"])
    inner.become_subreaper()
    inner.say(control, f"hello {pid}\n")
    worker = os.fork()
    if worker == 0:
        inner.take_place(out, err, bind_life=True)
        return Script(order["argv"], order["env"], order["marks"])
    os.close(out)
    os.close(err)
    inner.watch(control, wake_r, [worker], [False])
    inner.kill_below(os.getpid())
    os._exit(0)


def _move_in(target: int | None, holder: int, fds: tuple[int, ...]) -> int:
    """Into the sandbox of `target`, where `holder` is the pid of a process with the right privileges. Our pid outside is returned."""
    if target is None:
        return os.getpid()
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise RuntimeError("the nursery has threads")
    flags = namespaces.differing(target)
    namespaces.enter(target, flags)
    pid = _into_pid_namespace(fds) if flags & namespaces.PID else os.getpid()
    namespaces.lower_to(holder)
    return pid


def _into_pid_namespace(fds: tuple[int, ...]) -> int:
    """Go on as a child, which alone is inside; what stays outside reaps it, so that the namespace can end."""
    told_r, told_w = os.pipe()
    child = os.fork()
    if child:
        os.write(told_w, child.to_bytes(8, "big"))
        for fd in (*fds, told_r, told_w):
            os.close(fd)
        os.waitpid(child, 0)
        os._exit(0)
    os.close(told_w)
    pid = int.from_bytes(inner.exactly(told_r, 8), "big")
    os.close(told_r)
    return pid
