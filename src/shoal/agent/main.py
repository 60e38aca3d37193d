"""The story of an agent: join the gang, prepare, run the workers, tell the server all, leave."""

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
    from shoal.agent.node import WorkDir
    from shoal.agent.seed import Seed

_JOIN_LEAST_S, _JOIN_MOST_S = 0.05, 0.5


def main(args: list[str]) -> int:
    if len(args) == 2 and args[0] == "--salvage":
        from shoal.agent.salvage import salvage

        return salvage(Path(args[1]))
    if len(args) != 1:
        print(__doc__, "\nusage: python -m shoal.agent LAUNCH_FILE | --salvage WORK_DIR", file=sys.stderr)
        return 2
    return run(Path(args[0]))


def run(launch_file: Path, seed: Seed | None = None) -> int:
    """`seed`: a preloaded interpreter to run the worker in."""
    launch = Launch.read(launch_file)
    _own_session()
    _log_to(Path(launch.work_dir))
    # What comes after joining is imported while the server answers.
    warm = threading.Thread(target=_warm_up, daemon=True)
    warm.start()
    from shoal.agent.node import Busy, WorkDir

    work = WorkDir(Path(launch.work_dir))
    try:
        work.lock()
    except Busy as error:
        print(error, file=sys.stderr)
        return 3
    work.sign_in()
    work.keep_launch(launch_file)
    link = Link(launch.url, launch.token, launch.server_file, instance=launch.instance)
    join = _join(link, work, launch)
    if join is None:
        return 4
    warm.join()
    from shoal.agent.attempt import Node

    if join.lease is not None:
        from shoal.agent.lease_node import LeaseNode as Node
    return Node(launch, join, work, link, seed).run()


def _join(link: Link, work: WorkDir, launch: Launch) -> JoinReply | None:
    """Ask until the whole gang is there. None if the server does not want us."""
    from shoal.core.boot import boot_id
    from shoal.core.errors import Fenced, ShoalError, Unreachable

    asks = backoff(_JOIN_LEAST_S, _JOIN_MOST_S)
    body = {"pid": os.getpid(), "boot_id": boot_id(), "host": socket.gethostname(), "port": free_port()}
    body["machine"] = launch.machine
    body["process"] = os.urandom(16).hex()  # in memory only: the launch file alone does not open the secrets again
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
                _say_goodbye(link, work, None, "stopped before it started", told=True)
            else:
                _say_goodbye(link, work, 1, f"{JOIN_REFUSED}: {error.message}", told=False)
            return None
        time.sleep(next(asks))


def _say_goodbye(link: Link, work: WorkDir, code: int | None, reason: str, *, told: bool) -> None:
    """Nothing runs here and nothing will: say so and why, so that nobody waits for it or wonders.

    Where the server does not even take that, the result file is what engines and salvagers find.
    """
    from shoal.core.errors import ShoalError

    result = {"exit_code": code, "failed_rank": None, "reason": reason, "told": told}
    work.keep_result(result)
    try:
        link.post("/beat", {"state": "exited", "final": True, **result})
        work.keep_result({**result, "delivered": True})
    except ShoalError as error:
        print(f"last beat: {error.message}", file=sys.stderr)


def _own_session() -> None:
    """Out of reach of the terminal and of whoever started us."""
    try:
        os.setsid()
    except PermissionError:
        pass  # Already the leader of one.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Until there are workers to stop, these simply end the agent; Node takes them over.


def _log_to(work_dir: Path) -> None:
    """Our own output goes to agent.log, whoever started us."""
    work_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(work_dir / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


def _warm_up() -> None:
    from shoal.agent.inner import become_subreaper

    become_subreaper()
    import shoal.agent.attempt
    import shoal.store.codec  # noqa: F401
