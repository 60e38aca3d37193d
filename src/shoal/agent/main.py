"""The agent's main program: join the attempt, prepare the node, run the workers, report the result, exit."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent.link import Link, backoff
from shoal.agent.wire import JOIN_REFUSED, JoinReply, Launch
from shoal.core.ports import free_port

if TYPE_CHECKING:
    from shoal.agent.node.workdir import WorkDir
    from shoal.agent.prefork.worker import WaitingWorker

_JOIN_LEAST_S, _JOIN_MOST_S = 0.05, 0.5


def main(args: list[str]) -> int:
    if len(args) == 2 and args[0] == "--salvage":
        from shoal.agent.node.recovery import salvage

        return salvage(Path(args[1]))
    if len(args) != 1:
        print(__doc__, "\nusage: python -m shoal.agent LAUNCH_FILE | --salvage WORK_DIR", file=sys.stderr)
        return 2
    return run(Path(args[0]))


def run(launch_file: Path, waiting: WaitingWorker | None = None) -> int:
    """Run the node that a launch file describes; return the agent's exit code.

    `waiting` is a preloaded interpreter that the worker can run in (see `shoal.agent.prefork`).
    Exit codes: 3 when another agent runs this node, 4 when the server refused the join, 5 when the result was not delivered.
    """
    launch = Launch.read(launch_file)
    _start_session()
    _redirect_output(Path(launch.work_dir))
    # The modules needed after joining are imported while the server answers.
    warm = threading.Thread(target=_import_ahead, daemon=True)
    warm.start()
    from shoal.agent.node.workdir import Busy, WorkDir

    work = WorkDir(Path(launch.work_dir))
    try:
        work.lock()
    except Busy as error:
        print(error, file=sys.stderr)
        return 3
    work.sign_in()
    work.keep_launch(launch_file)
    link = Link(launch.url, launch.token, launch.server_file, instance=launch.instance, ca=launch.ca)
    join = _join(link, work, launch)
    if join is None:
        return 4
    warm.join()
    from shoal.agent.node.node import Node

    if join.lease is not None:
        from shoal.agent.lease.node import LeaseNode as Node
    return Node(launch, join, work, link, waiting).run()


def _join(link: Link, work: WorkDir, launch: Launch) -> JoinReply | None:
    """Repeat the join request until all nodes of the attempt have joined. Return None if the server refuses it."""
    from shoal.core.boot import boot_id
    from shoal.core.errors import Fenced, ShoalError, Unreachable

    asks = backoff(_JOIN_LEAST_S, _JOIN_MOST_S)
    body = {"pid": os.getpid(), "boot_id": boot_id(), "host": socket.gethostname(), "port": free_port()}
    body["machine"] = launch.machine
    body["process"] = os.urandom(
        16
    ).hex()  # kept in memory only, so the launch file alone is not enough to fetch the secrets again
    body["giver_port"] = None if launch.store_path else free_port()
    while True:
        try:
            body["address"] = launch.address or link.local_address()
            reply = JoinReply(link.post("/join", body))
            if reply.ready:
                return reply
        except (Unreachable, OSError) as error:
            print(f"join: {error}", file=sys.stderr)
        except ShoalError as error:
            print(f"join refused: {error.code}: {error.message}", file=sys.stderr)
            if isinstance(error, Fenced):
                _report_not_started(link, work, None, "stopped before it started", told=True)
            else:
                _report_not_started(link, work, 1, f"{JOIN_REFUSED}: {error.message}", told=False)
            return None
        time.sleep(next(asks))


def _report_not_started(link: Link, work: WorkDir, code: int | None, reason: str, *, told: bool) -> None:
    """Report that no worker ran on this node and why, so that the server does not wait for it.

    The result is also written to the work directory: if the server refuses even this heartbeat, engines and `--salvage` read it
    there.
    """
    from shoal.core.errors import ShoalError

    result = {"exit_code": code, "failed_rank": None, "reason": reason, "told": told}
    work.keep_result(result)
    try:
        link.post("/beat", {"state": "exited", "final": True, **result})
        work.keep_result({**result, "delivered": True})
    except ShoalError as error:
        print(f"last beat: {error.message}", file=sys.stderr)


def _start_session() -> None:
    """Start a session of our own, so that signals to the terminal or to the parent's process group do not reach us."""
    try:
        os.setsid()
    except PermissionError:
        pass  # we already lead a session
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # SIGTERM, SIGINT and SIGHUP keep their default (the agent ends) until Node installs its handlers to stop the workers.


def _redirect_output(work_dir: Path) -> None:
    """Redirect the agent's own stdout and stderr to agent.log in the work directory."""
    work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(work_dir / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _import_ahead() -> None:
    from shoal.agent.workers.parent import become_subreaper

    become_subreaper()
    import shoal.agent.node.node
    import shoal.store.codec  # noqa: F401
