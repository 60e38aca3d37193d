"""Server processes forked from one that has imported the server: real servers without four seconds of imports each.

The template is a process of this test run, started for the first server. It has no other thread when it forks, and reads one
request at a time: the command line, environment and log file of a server. The fork has its own session, shows its own command
line and environment in /proc, and outlives the template like a server that was started by a command.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from shoal.agent.prefork import process_title
from shoal.client.local import running_server, server_command, server_environment
from shoal.client.patience import POLL_S
from shoal.client.server_record import ServerRecord
from shoal.core.private import write_private
from shoal.core.settings import Layout
from shoal.testing import leaks, prefork_forks
from shoal.testing.patience import patient

_PROGRAM = f"__import__({__name__!r}, fromlist='.').serve()"
_LONGEST = 1 << 17
_START_LIMIT_S = 60.0
_MEASURED = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "COVERAGE_RCFILE")
"""Variables of coverage.py, which measures processes that are started, not forked."""
_PYTHONPATH = os.environ.get("PYTHONPATH")
"""PYTHONPATH of this run, which the template has; a test may set another for its server."""


def can_fork() -> bool:
    """Check whether a server may be forked now; not with another PYTHONPATH, which is read when an interpreter starts."""
    is_same_path = os.environ.get("PYTHONPATH") == _PYTHONPATH
    return sys.platform == "linux" and is_same_path and not any(name in os.environ for name in _MEASURED)


def start_forked(layout: Layout, arguments: list[str], *, prefork: bool = False) -> ServerRecord:
    """Start a server on this data directory unless one is running, and wait until it answers.

    `prefork`: its prefork parents are forked from a process that has imported torch.
    """
    if record := running_server(layout):
        return record
    layout.server_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not layout.server_log.exists():
        write_private(layout.server_log, "")
    log_start = layout.server_log.stat().st_size
    pid = _template().fork([*server_command(layout), *arguments], layout, prefork_forks.address() if prefork else None)
    deadline = time.monotonic() + patient(_START_LIMIT_S)
    while (record := running_server(layout)) is None:
        ended = not Path(f"/proc/{pid}").exists()
        if ended or time.monotonic() > deadline:
            said = layout.server_log.read_bytes()[log_start:].decode(errors="replace")
            raise AssertionError(f"the server {'ended while starting' if ended else 'does not become ready'}:\n{said}")
        time.sleep(POLL_S)
    return record


class _Template:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        argv = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())]
        argv, env = process_title.roomy(argv, env)
        with theirs:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, env=env, pass_fds=[theirs.fileno()], cwd="/", start_new_session=True
            )
        leaks.keep(self._process.pid)
        atexit.register(self._close)

    def fork(self, argv: list[str], layout: Layout, prefork: str | None) -> int:
        request = {
            "argv": argv, "env": server_environment(layout), "cwd": str(layout.server_dir), "log": str(layout.server_log),
            "prefork": prefork,
        }  # fmt: skip
        with self._lock:
            self._control.sendall(json.dumps(request).encode())
            answer = self._control.recv(8)
        assert answer, "the process that forks servers has ended"
        return int.from_bytes(answer, "big")

    def _close(self) -> None:
        self._control.close()
        self._process.wait()


@functools.cache
def _template() -> _Template:
    return _Template()


def serve() -> None:
    """Run the template until the test process closes its socket. Forks do not return: they exit with their server."""
    control, env = socket.socket(fileno=int(sys.argv[1])), process_title.initial_env()
    process_title.set_env(env)
    process_title.show([sys.executable, "-m", __name__], env)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a server that has ended does not stay a zombie
    gc.disable()
    import shoal.engines.local.kind
    import shoal.server.__main__
    import shoal.server.run
    from shoal.server.policy import check_app
    from shoal.server.web.app import build

    check_app(build())  # the console is built once in a process
    process_title.set_env(env)  # imports may have set variables
    gc.enable()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1
    while data := control.recv(_LONGEST):
        if pid := os.fork():
            control.sendall(pid.to_bytes(8, "big"))
            continue
        control.close()
        code = 70
        try:
            _become(json.loads(data))
            code = shoal.server.__main__.main()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(
                code
            )  # an ordinary exit would tear down all imported modules, which takes longer than a server's start


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(request["cwd"])
    process_title.set_env(request["env"])
    process_title.show(request["argv"], request["env"], ["SHOAL_HOME"])
    sys.orig_argv, sys.argv = request["argv"], ["shoal.server", *request["argv"][4:]]
    random.seed()
    if request["prefork"]:
        vars(sys.modules["shoal.engines.local.kind"])["PreforkParent"] = functools.partial(
            prefork_forks.ForkedParent, request["prefork"]
        )
