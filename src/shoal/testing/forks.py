"""Python processes forked from one that has already imported their modules: real processes that start fast.

`Fork([sys.executable, "train.py"])` is a `subprocess.Popen` whose process is forked from a prefork parent, which is started
once per test run for each set of modules. The fork has its own pid, environment, command line in /proc, descriptors and exit
status; it is killed and waited for like any other process. Use it where starting an interpreter is not what is tested.

The prefork parent has no other thread when it forks, and reads one request at a time. It reaps its forks and writes each exit
status to a socket that came with the request; the test holds the other end. It ends with the test process, and its forks end
with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.agent.prefork import process_title
from shoal.agent.prefork.script import Script, forget_the_past, skip_unloading_at_exit
from shoal.agent.prefork.script import run as run_script

CLI = (
    "cyclopts", "httpx", "pydantic", "rich.console", "rich.table", "rich.text", "rich.progress", "zstandard", "shoal.cli.main",
    "shoal.cli.training.app", "shoal.cli.dataset.app", "shoal.cli.checkpoint.app", "shoal.cli.key", "shoal.cli.secret", "shoal.cli.server.app",
    "shoal.cli.machine.app", "shoal.cli.queue", "shoal.cli.sweep.app", "shoal.client", "shoal.client.connect", "shoal.store.pack",
)  # fmt: skip
"""Modules that commands of `shoal` import."""
AGENT = (
    "http.client", "zstandard", "shoal.agent.node.node", "shoal.agent.node.inventory", "shoal.agent.data.checkpoint_uploader", "shoal.agent.main",
    "shoal.agent.devices.system_metrics", "shoal.agent.prefork.warm", "shoal.store.codec", "shoal.store.pack",
)  # fmt: skip
TORCH = (
    "numpy", "numpy.random", "torch", "torch._dynamo", "torch.utils.data", "torch.nn.parallel", "torch.distributed.fsdp",
    "torch.distributed.tensor", "shoal.sdk.start", "shoal.sdk.run", "shoal.sdk.setup", "shoal.train",
)  # fmt: skip
"""Modules that training scripts import."""
HUGGING_FACE = (
    *TORCH, "transformers", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama", "accelerate", "accelerate.data_loader",
)  # fmt: skip
LIGHTNING = (*TORCH, "lightning", "lightning.fabric", "lightning.pytorch.strategies.ddp")
_PROGRAM = f"__import__({__name__!r}, fromlist='.').serve()"
_LONGEST = 1 << 17
_PR_SET_PDEATHSIG = 1
_PARENTS: dict[tuple[str, ...], _Parent] = {}
_LOCK = threading.RLock()


class Fork(subprocess.Popen[str]):
    """`Popen` of `[python, SCRIPT | -m MODULE, …]` whose process is forked; always with text pipes."""

    def __init__(self, args: Sequence[Any], *, modules: tuple[str, ...] = TORCH, **options: Any):
        self._parent = _parent_with(modules)
        super().__init__([os.fspath(word) for word in args], text=True, **options)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any,
                       startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int,
                       c2pwrite: int, errread: int, errwrite: int, restore_signals: Any, gid: Any, gids: Any, uid: Any,
                       umask: Any, start_new_session: bool, *_: Any) -> None:  # fmt: skip
        assert not (shell or preexec_fn or pass_fds), "a fork does not support shell, preexec_fn and pass_fds"
        env = dict(os.environ if env is None else env)
        request = {"argv": args, "cwd": os.fspath(cwd or Path.cwd()), "env": env, "session": bool(start_new_session)}
        self._status, theirs = socket.socketpair()
        fds = [fd if fd >= 0 else own for own, fd in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            with theirs:
                self.pid = self._parent.fork(request, [*fds, theirs.fileno()], self._status)
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        self._child_created = True

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and hasattr(self, "pid"):
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        with self._status:
            data = self._status.recv(4)
        return self.pid, int.from_bytes(data, "big") if data else signal.SIGKILL  # it ended with the prefork parent


def run(
    args: Sequence[Any], *, modules: tuple[str, ...] = TORCH, capture_output: bool = False, input: str | None = None,
    timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a fork like `subprocess.run(args, text=True, check=False)`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Fork(args, modules=modules, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class _Parent:
    def __init__(self, modules: tuple[str, ...], parent: _Parent | None):
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if parent is not None:
                self._status, status_socket = socket.socketpair()
                with status_socket:
                    self.pid = parent.fork(
                        {"modules": modules}, [theirs.fileno(), 1, 2, status_socket.fileno()], self._status
                    )
            else:
                env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")} | {"OMP_NUM_THREADS": "1"}
                argv, env = process_title.roomy([sys.executable, "-u", "-c", _PROGRAM, *modules], env)
                self._process = subprocess.Popen(argv, stdin=theirs.fileno(), env=env)
                self.pid = self._process.pid
        if "pytest" in sys.modules:
            from shoal.testing import leaks

            leaks.keep(self.pid)
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], fds: list[int], status: socket.socket) -> int:
        data = json.dumps(request).encode()
        assert len(data) < _LONGEST
        socket.send_fds(self._control, [data], fds)
        answer = status.recv(8)
        assert answer, "the process that forks has ended"
        return int.from_bytes(answer, "big")

    def has_ended(self) -> bool:
        """Check whether the process has ended: its end of the control socket is closed then, and it never writes to it."""
        return bool(select.select([self._control], [], [], 0)[0])

    def close(self) -> None:
        self._control.close()
        if hasattr(self, "_process"):
            self._process.wait()
        else:
            self._status.recv(4)


def _parent_with(modules: tuple[str, ...]) -> _Parent:
    """Return the prefork parent with these modules, which lives until this process ends."""
    with _LOCK:
        if modules not in _PARENTS or _PARENTS[modules].has_ended():
            parent = _parent_with(TORCH) if modules[: len(TORCH)] == TORCH and modules != TORCH else None
            _PARENTS[modules] = _Parent(modules, parent)
        return _PARENTS[modules]


def serve() -> None:
    """Run the prefork parent. Returns in the forks, at the end of their script, so that they end as usual."""
    env = process_title.initial_env()
    own_path = _search_path(env)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the forks, which restore the handler
    request: dict[str, Any] = {"modules": sys.argv[1:-1]}
    while "modules" in request:
        process_title.set_env(env)
        process_title.show([sys.executable, "-m", __name__], env)
        control = socket.socket(fileno=os.dup(0))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name in request["modules"]:
            with contextlib.suppress(ImportError):  # a script that needs it gets the error
                importlib.import_module(name)
        process_title.set_env(env)  # removes variables that imported modules have set
        gc.collect()
        gc.freeze()
        request = _requests(control)
    os.chdir(request["cwd"])
    if request["session"]:
        os.setsid()
    argv = request["argv"]
    sys.path[1:] = _search_path(request["env"]) + [p for p in sys.path[1:] if p not in own_path]
    if argv[1] == "-m":
        _run_module(argv, request["env"])
    else:
        run_script(Script([argv[0], "-u", *argv[1:]], request["env"], ["SHOAL_HOME", "SHOAL_SPOOL"]))


def _requests(control: socket.socket) -> dict[str, Any]:
    """Fork for each request, and report the ends of the forks. Returns in a fork only."""
    running: dict[int, socket.socket] = {}
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    while True:
        ready = select.select([control.fileno(), wake_r], [], [])[0]
        if wake_r in ready:
            os.read(wake_r, 4096)
            _reap(running)
        if control.fileno() not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(control, _LONGEST, 4)
        if not data:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        status = socket.socket(fileno=fds[3])
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            for own, fd in enumerate(fds[:3]):
                os.dup2(fd, own)
            for fd in (*fds, control.detach(), wake_r, wake_w, *(other.detach() for other in running.values())):
                os.close(fd)
            status.detach()
            request: dict[str, Any] = json.loads(data)
            return request
        status.sendall(pid.to_bytes(8, "big"))
        running[pid] = status
        for fd in fds[:3]:
            os.close(fd)


def _reap(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as status_socket, contextlib.suppress(OSError):
                status_socket.sendall(status.to_bytes(4, "big"))


def _search_path(env: dict[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH in this environment as absolute paths, relative to the working directory."""
    return [os.path.abspath(p) for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]  # noqa: PTH100


def _run_module(argv: list[str], env: dict[str, str]) -> None:
    process_title.set_env(env)
    process_title.show(argv, env, ["SHOAL_HOME", "SHOAL_SPOOL"])
    forget_the_past()
    skip_unloading_at_exit(ctypes.CDLL(None))
    sys.argv, sys.orig_argv = argv[2:], argv
    sys.path[0] = os.getcwd()  # noqa: PTH109
    runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
