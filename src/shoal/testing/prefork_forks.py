"""Prefork parents of test servers, forked from one process that has imported torch: no test server imports it again.

A server of a test run (`server_forks`) that may preload torch asks this run's template for its prefork parent, and has it from
the first job on. The fork runs `shoal.agent.prefork.parent.main` like any prefork parent, with the server's environment and
its own session, control socket and log file; only the imports were done before. Where the template cannot stand for a new
interpreter, because a variable that is read at start-up differs, the server starts one as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from shoal.agent.prefork import parent, process_title
from shoal.agent.prefork.warm import early
from shoal.engines.local.prefork import PreforkParent, WarmAgent, prefork_env, readable

_PROGRAM = f"__import__({__name__!r}, fromlist='.').serve()"
_LONGEST = 1 << 17
_READY_S = 30.0
"""Seconds that a forked prefork parent may take to be ready: it only collects garbage, but the machine may be busy."""


class ForkedParent(PreforkParent):
    """Client of a prefork parent that is forked from the template at `address`, and is there for the first agent."""

    def __init__(self, address: str, *args: Any):
        super().__init__(*args)
        self._address = address

    def agent(self, launch_file: Path, cpu_threads: int) -> WarmAgent | None:
        for _ in range(2):  # the second time if the prefork parent has ended, as it does when idle
            if self._control is None:
                self._start(cpu_threads)
            if self._control is not None and not self._ready:
                readable(self._control.fileno(), _READY_S)
            found = super().agent(launch_file, cpu_threads)
            if found is not None or self._control is not None:
                return found
        return None

    def _start(self, cpu_threads: int) -> None:
        ours, theirs = socket.socketpair()
        request = {"env": prefork_env(cpu_threads, self._env), "python": self._python}
        with theirs, self._log.open("wb") as log, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
            template.connect(f"\0{self._address}")
            socket.send_fds(template, [json.dumps(request).encode()], [theirs.fileno(), log.fileno()])
            pid = int.from_bytes(template.recv(8), "big")
        if not pid:
            ours.close()
            super()._start(cpu_threads)
            return
        self._control, self._process = ours, _Parent(pid, os.pidfd_open(pid))


class _Parent(WarmAgent):
    """A prefork parent that is not our child process."""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            super().kill()


class _Template:
    def __init__(self) -> None:
        from shoal.testing import leaks

        self.address = f"shoal-test-{secrets.token_hex(8)}"
        self._life, theirs = socket.socketpair()
        argv, env = process_title.roomy([sys.executable, "-u", "-c", _PROGRAM], prefork_env(1, {}))
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{self.address}")
            listener.listen(16)
            fds = [listener.fileno(), theirs.fileno()]
            argv[4:4] = map(str, fds)
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, cwd="/", env=env, pass_fds=fds, start_new_session=True
            )
        leaks.keep(self._process.pid)
        atexit.register(self._close)
        assert self._life.recv(1) == parent.READY, "the process that forks prefork parents has ended"

    def _close(self) -> None:
        self._life.close()
        self._process.wait()


@functools.cache
def _template() -> _Template:
    return _Template()


def address() -> str:
    """Return the address of this run's template, which is started by the first call."""
    return _template().address


def serve() -> None:
    """Run the template until the test process ends. Returns in a worker only, at the end of its script."""
    listener, life = (socket.socket(fileno=int(word)) for word in sys.argv[1:3])
    started = early(process_title.initial_env())
    env = parent.restore_environment()
    for name in parent.PRELOADED:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    process_title.set_env(env)
    gc.collect()
    gc.freeze()
    life.sendall(parent.READY)
    while True:
        ready = select.select([listener, life], [], [])[0]
        if life in ready:
            os._exit(0)
        server = listener.accept()[0]
        data, fds, _, _ = socket.recv_fds(server, _LONGEST, 2)
        request: dict[str, Any] = json.loads(data)
        fits = request["python"] == sys.executable and early(request["env"]) == started
        pid = os.fork() if fits else -1
        if pid == 0:
            for end in (listener, life, server):
                end.close()
            _become(request["env"], *fds)
            break
        server.sendall(max(pid, 0).to_bytes(8, "big"))
        server.close()
        for fd in fds:
            os.close(fd)
    parent.main()


def _become(env: dict[str, str], control: int, log: int) -> None:
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    chosen = os.environ.get("LC_CTYPE")  # by the interpreter when it started, as it would have chosen it now
    env |= {"LC_CTYPE": chosen} if chosen else {}
    process_title.set_env(env)
    process_title.show([sys.executable, "-m", parent.__name__], env)
    sys.argv = ["-c", str(control)]
