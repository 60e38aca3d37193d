"""Recovery after an agent that died: kill the processes it left running and deliver its unsent records. Safe to repeat."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from shoal.agent.link import Link
from shoal.agent.node.delivery import DELIVER_FOR_S, deliver, ended, set_up_logging
from shoal.agent.node.heartbeat import Beats, NodeControl
from shoal.agent.node.workdir import LAUNCH, Busy, WorkDir, marked_processes
from shoal.agent.outbox.outbox import Outbox
from shoal.agent.outbox.shipping import Shipper
from shoal.agent.sandbox.cgroups import Group
from shoal.agent.sdk_records.reports import RunReports
from shoal.agent.wire import MOST_UNKILLABLE, NEVER_STARTED, Launch
from shoal.core.directory_identity import is_copied_node
from shoal.store.hasher import read_only_within

logger = logging.getLogger(__name__)

_KILL_FOR_S = 10.0


def salvage(root: Path) -> int:
    """Kill what a dead agent left running and deliver its records; return the exit code (0: the server has everything)."""
    set_up_logging()
    if is_copied_node(root):
        logger.error("%s is a copy of a work directory; the processes of the original are not touched", root)
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
    left = kill_marked(launch)
    group = Group(f"{launch.attempt_id}.{launch.node}")
    if any(folder.exists() for folder in group.folders):
        group.close()
    read_only_within(root)
    known = work.result
    if known and known.get("delivered"):
        return 0
    outboxes = {stream: Outbox(work.spool(stream)) for stream in ("log", "system", "metric")}
    if known is None:
        known = ended(None, "agent died" if work.was_entered else NEVER_STARTED)
        known["unkillable"] = left[:MOST_UNKILLABLE]
        work.keep_result(known)
        if work.was_entered:
            text = "[shoal] the agent of this node died; its remaining workers were killed"
            line = {"t": round(time.time(), 3), "r": None, "e": "sys", "m": text}
            outboxes["log"].append([json.dumps(line).encode()])
    link = Link(launch.url, launch.token, launch.server_file, instance=launch.instance, ca=launch.ca)
    reports = RunReports(work, outboxes["metric"], link.another(), logger.info)
    reports.upload_all_media()
    beats, shipper = Beats(link, NodeControl(), lambda: None), Shipper(link.another(), outboxes)
    beats.update(state="exited", **known)
    beats.start()
    shipper.start()
    if not deliver(beats, shipper, reports, time.monotonic() + DELIVER_FOR_S):
        return 5
    work.keep_result({**known, "delivered": True})
    return 0


def kill_marked(launch: Launch) -> list[int]:
    """Send SIGKILL to all processes that carry the node's marks in their environment; return those that are still there."""
    deadline = time.monotonic() + _KILL_FOR_S
    while (left := marked_processes(launch.attempt_id, launch.node)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    if left:
        logger.error("processes that cannot be killed: %s", left)
    return left
