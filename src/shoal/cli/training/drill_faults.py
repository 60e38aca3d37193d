"""Parser of the faults of a drill, as typed: rank1@30, node0@50, rank1:3x@10-20, 20s@40."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.cli.shared.output import out
from shoal.cli.shared.parse import parse_duration
from shoal.core.drills import MOST_AWAY_S, Fault, Plan, What
from shoal.core.errors import UsageError

MORE_STEPS = 20
"""Default number of steps after the last fault."""
AWAY_AFTER = 10
"""Default number of steps after the last --kill or --sigterm (or after the start) at which the server goes down."""
_HIT = re.compile(r"(?P<kind>rank|node)(?P<number>\d{1,6})@(?P<at>\d{1,12})")
_SLOW = re.compile(r"rank(?P<rank>\d{1,6}):(?P<factor>\d{1,4}(\.\d+)?)x(@(?P<at>\d{1,12})(-(?P<until>\d{1,12}))?)?")
_AWAY = re.compile(r"(?P<length>[^@]+)(@(?P<at>\d{1,12}))?")


def plan(
    kill: Sequence[str], sigterm: Sequence[str], slow: Sequence[str], server_down: Sequence[str], steps: int | None
) -> Plan:
    ended = [*(_hit("kill", text) for text in kill), *(_hit("sigterm", text) for text in sigterm)]
    calm = max((fault.at for fault in ended), default=0) + AWAY_AFTER
    faults = [*ended, *map(_slow, slow), *(_away(text, calm) for text in server_down)]
    if not faults:
        raise UsageError("No faults given.", hint=f"{out.prog} training drill JOB --kill rank0@30 --server-down 20s")
    last = max(fault.at for fault in faults)
    if steps is not None and steps <= last:
        raise UsageError(
            f"--steps {steps} is too few: the last fault is at step {last}, and more steps must follow.",
            hint=f"--steps {last + MORE_STEPS}",
        )
    return Plan.of(steps or last + MORE_STEPS, faults)


def check_targets(planned: Plan, *, nodes: int, accels: int) -> None:
    """Raise UsageError if a fault names a rank or node that the job does not have."""
    workers = nodes * accels
    for fault in planned.faults:
        if fault.rank is not None and fault.rank >= workers:
            last = f"ranks 0 to {workers - 1}" if workers > 1 else "rank 0 only"
            raise UsageError(f"--{fault.text}: the job has {last}.", hint="Use --accels or --nodes for more workers.")
        if fault.node is not None and fault.node >= nodes:
            last = f"nodes 0 to {nodes - 1}" if nodes > 1 else "node 0 only"
            raise UsageError(f"--{fault.text}: the job has {last}.", hint="Use --nodes for more nodes.")


def _hit(what: What, text: str) -> Fault:
    found = _HIT.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"--{what} {text!r} does not name a worker or node, and a step.",
            hint=f"For example: --{what} rank1@30, or --{what} node0@50",
        )
    number, at = int(found["number"]), _step(found["at"], f"--{what} {text}")
    is_rank = found["kind"] == "rank"
    return Fault(what=what, at=at, rank=number if is_rank else None, node=None if is_rank else number)


def _slow(text: str) -> Fault:
    found = _SLOW.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"--slow {text!r} does not name a worker and a factor.",
            hint="For example: --slow rank1:3x, or --slow rank1:3x@10-20 from step 10 to 20",
        )
    at = _step(found["at"] or "1", f"--slow {text}")
    until = int(found["until"]) if found["until"] else None
    if float(found["factor"]) <= 1:
        raise UsageError(f"--slow {text}: the factor must be larger than 1.", hint=f"--slow rank{found['rank']}:2x")
    if until is not None and until < at:
        raise UsageError(f"--slow {text}: the last step is before the first.")
    return Fault(what="slow", at=at, until=until, rank=int(found["rank"]), factor=float(found["factor"]))


def _away(text: str, calm: int) -> Fault:
    found = _AWAY.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"--server-down {text!r} is not a duration.",
            hint="For example: --server-down 20s, or --server-down 20s@40 from step 40 on",
        )
    seconds = parse_duration(found["length"], "--server-down")
    if seconds > MOST_AWAY_S:
        raise UsageError(f"--server-down {text}: the maximum is one hour.", hint="--server-down 1h")
    return Fault(what="server-down", at=_step(found["at"] or str(calm), f"--server-down {text}"), seconds=seconds)


def _step(text: str, given: str) -> int:
    if int(text) < 1:
        raise UsageError(f"{given}: steps are counted from 1.")
    return int(text)
