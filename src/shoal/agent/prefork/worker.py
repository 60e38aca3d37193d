"""The waiting process of preforked workers: forked from a new agent, with all modules of the prefork parent loaded.

When the workers start, the waiting process enters the sandbox and becomes the worker parent (as `workers/parent.py` is for
workers that are started by their command line); its children are the workers.

Why this is safe: the fork happens before the agent has threads or knows a secret, so it copies no locked lock and no secret.
The agent owns one end of the socket. If the agent dies or discards the process, the waiting process reads the end of the
socket and exits. After the start the `control` socket has that role: when it closes, everything below is killed. An error
before the `hello` line ends the process without having run anything of the job, and the agent starts the workers by their
command lines instead.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from shoal.agent.node.limits import set_limits
from shoal.agent.prefork import process_title
from shoal.agent.prefork.script import Script
from shoal.agent.sandbox import namespaces
from shoal.agent.workers import parent as worker_parent

MOST_WORKERS = 64
"""Workers that one waiting process can start: the kernel passes at most 253 descriptors at once."""
_FDS = 2 + 2 * MOST_WORKERS
_ITSELF = [sys.executable, "-m", __name__]
"""Command line shown in process lists."""


class WaitingWorker:
    """The agent's handle of a waiting process."""

    def __init__(self, end: socket.socket, env: dict[str, str]):
        self._end = end
        self.env = env
        """The environment its interpreter was started with."""

    def start(self, request: dict[str, object], control: int, own: int, pipes: list[int]) -> None:
        """Start the workers. `request` is {cwd, workers: [{argv, env, cpus}], marks, own_env, target, holder}.

        `pipes` are stdout and stderr of each worker. From then on the process communicates through `control`, with the
        protocol of `workers/parent.py`.
        """
        data = marshal.dumps(request)
        socket.send_fds(self._end, [len(data).to_bytes(8, "big")], [control, own, *pipes])
        self._end.sendall(data)
        self._end.close()

    def discard(self) -> None:
        """End the waiting process without using it."""
        self._end.close()


def fork_waiting_worker(env: dict[str, str]) -> WaitingWorker | Script:
    """Fork a waiting process. Returns its handle in the agent, and later the script to run in each worker."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return WaitingWorker(ours, env)
    try:
        ours.close()
        process_title.show(_ITSELF, os.environ)
        header, fds, _, _ = socket.recv_fds(theirs, 8, _FDS)
        if not header:
            os._exit(0)
        request = marshal.loads(worker_parent.exactly(theirs.fileno(), int.from_bytes(header, "big")))  # noqa: S302
        theirs.close()
        control, own, *pipes = fds
        return _become_parent(request, control, own, pipes)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _become_parent(request: dict[str, Any], control: int, own: int, pipes: list[int]) -> Script:
    """Enter the sandbox, fork the workers and watch them. Returns only in a worker."""
    os.dup2(own, 1)
    os.dup2(own, 2)
    os.close(own)
    set_limits()
    process_title.set_env(request["own_env"])
    process_title.show(_ITSELF, request["own_env"], request["marks"])
    try:
        pid = _enter_sandbox(request["target"], request["holder"], (control, *pipes))
    except (OSError, RuntimeError) as error:
        worker_parent.report(control, f"cannot: {error}\n")
        os._exit(1)
    wake_r = worker_parent.listen()
    os.chdir(request["cwd"])
    worker_parent.become_subreaper()
    worker_parent.report(control, f"hello {pid}\n")
    pids = []
    for worker, out, err in zip(request["workers"], pipes[::2], pipes[1::2], strict=True):
        pid = os.fork()
        if pid == 0:
            worker_parent.become_worker(out, err, bind_life=True)
            worker_parent.run_on(worker.get("cpus"))
            return Script(worker["argv"], worker["env"], request["marks"])
        pids.append(pid)
    for fd in pipes:
        os.close(fd)
    worker_parent.watch(control, wake_r, pids, [False] * len(pids))
    worker_parent.kill_below(os.getpid())
    os._exit(0)


def _enter_sandbox(target: int | None, holder: int, fds: tuple[int, ...]) -> int:
    """Enter the sandbox of `target` and drop to the privileges of `holder`, a pid inside; return our pid as seen outside."""
    if target is None:
        return os.getpid()
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise RuntimeError("the prefork parent has threads")
    flags = namespaces.differing(target)
    namespaces.enter(target, flags)
    pid = _into_pid_namespace(fds) if flags & namespaces.PID else os.getpid()
    namespaces.lower_to(holder, debugging=True)  # warm workers see the machine's files
    return pid


def _into_pid_namespace(fds: tuple[int, ...]) -> int:
    """Continue in a child, because only children enter a pid namespace; return the child's pid as seen outside.

    The process that stays outside waits for the child and reaps it, so that the namespace can end.
    """
    pid_r, pid_w = os.pipe()
    child = os.fork()
    if child:
        os.write(pid_w, child.to_bytes(8, "big"))
        for fd in (*fds, pid_r, pid_w):
            os.close(fd)
        os.waitpid(child, 0)
        os._exit(0)
    os.close(pid_w)
    pid = int.from_bytes(worker_parent.exactly(pid_r, 8), "big")
    os.close(pid_r)
    return pid
