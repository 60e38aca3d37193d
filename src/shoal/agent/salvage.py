"""After an agent that died without a last word: end what it left running, deliver what it had to say. Safe to repeat."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from shoal.agent.attempt import DELIVER_FOR_S, deliver, ended, set_up_logging
from shoal.agent.link import Link
from shoal.agent.node import LAUNCH, Busy, WorkDir, marked_processes
from shoal.agent.reporting import Beats, Orders
from shoal.agent.run_reports import RunReports
from shoal.agent.shipping import Shipper
from shoal.agent.spool import Spool
from shoal.agent.wire import Launch
from shoal.core.place import is_copied_node

logger = logging.getLogger(__name__)

_KILL_FOR_S = 10.0


def salvage(root: Path) -> int:
    set_up_logging()
    if is_copied_node(root):
        logger.error("%s is a copy: what was started in the original is left alone", root)
        return 2
    work = WorkDir(root)
    try:
        work.lock()
    except Busy as error:
        logger.info("%s: nothing to salvage", error)
        return 3
    try:
        launch = Launch.read(root / LAUNCH)
    except (OSError, ValueError) as error:
        logger.error("cannot salvage: %s", error)
        return 2
    kill_marked(launch)
    known = work.result
    if known and known.get("delivered"):
        return 0
    spools = {stream: Spool(work.spool(stream)) for stream in ("log", "system", "metric")}
    if known is None:
        known = ended(None, "agent died")
        work.keep_result(known)
        text = "[shoal] the agent of this node died; what was left of its workers was ended"
        spools["log"].append([json.dumps({"t": round(time.time(), 3), "r": None, "e": "sys", "m": text}).encode()])
    link = Link(launch.url, launch.token, launch.server_file, instance=launch.instance)
    reports = RunReports(work, spools["metric"], link.another(), logger.info)
    reports.bring_all_media()
    beats, shipper = Beats(link, Orders(), lambda: None), Shipper(link.another(), spools)
    beats.update(state="exited", **known)
    beats.start()
    shipper.start()
    if not deliver(beats, shipper, reports, time.monotonic() + DELIVER_FOR_S):
        return 5
    work.keep_result({**known, "delivered": True})
    return 0


def kill_marked(launch: Launch) -> None:
    """SIGKILL whatever carries the node's marks. After a reboot there is nothing."""
    deadline = time.monotonic() + _KILL_FOR_S
    while (left := marked_processes(launch.attempt_id, launch.node)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    if left:
        logger.error("processes that cannot be killed: %s", left)
