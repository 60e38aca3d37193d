"""The end of a node: its result, and the delivery of all its records; also for recovery, which has no workers."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.agent.node.heartbeat import Beats
    from shoal.agent.outbox.shipping import Shipper
    from shoal.agent.sdk_records.reports import RunReports

DELIVER_FOR_S = 7 * 86400.0


def deliver(beats: Beats, shipper: Shipper, reports: RunReports, deadline: float) -> bool:
    """Deliver all records, then the final heartbeat; return False if the deadline passes first.

    The order matters: after the final heartbeat the server takes the node's records for complete.
    """
    if not reports.drained(deadline - time.monotonic()):
        return False
    if not shipper.drained(deadline - time.monotonic()):
        return False
    version = beats.update(final=True)
    if not beats.delivered(version, deadline - time.monotonic()):
        return False
    beats.stop()
    return True


def ended(code: int | None, reason: str | None, *, rank: int | None = None, told: bool = False) -> dict[str, Any]:
    return {"exit_code": code, "failed_rank": rank, "reason": reason, "told": told}


def set_up_logging() -> None:
    """Log to stderr, which is redirected to agent.log."""
    level = os.environ.get("SHOAL_LOG_LEVEL") or "INFO"
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=level)
