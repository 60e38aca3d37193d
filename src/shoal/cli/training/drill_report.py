"""Report of a drill: compare the copy with faults to the undisturbed one (survived, steps lost, exact, recovery time)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

from shoal.cli.training.drill_evidence import Copy, DrillLine
from shoal.core.comparing import Difference, by_weight, first_difference, is_of_time
from shoal.core.drills import Fault, Plan
from shoal.core.errors import JobFailed
from shoal.sdk.samples.sample_log import audit


def check(plan: Plan, reference: Copy) -> None:
    """Raise JobFailed if the undisturbed copy did not run far enough to judge the drill."""
    if reference.status != "succeeded" and reference.first("ended") is None:
        raise JobFailed(
            f"The undisturbed copy {reference.name} {reference.status}: {reference.reason or 'no reason was given'}"
        )
    going = reference.first("going")
    if going is None:
        raise JobFailed(
            "The script reported no steps to Shoal, so faults cannot be injected.",
            hint="It needs shoal.init() and run.step(...): see docs/howto/instrument-a-script.md",
        )
    if going.step >= min(f.at for f in plan.faults):
        raise JobFailed(
            f"The job starts from a checkpoint of step {going.step}, but a fault is planned before that.",
            hint=f"Use a later step: --kill rank0@{going.step + 10}",
        )
    if reference.end <= plan.last_fault:
        raise JobFailed(
            f"The script ended at step {reference.end}, before the last fault at step {plan.last_fault}.",
            hint=f"Train for more steps, or use an earlier step: --kill rank0@{max(1, reference.end // 2)}",
        )


def report(plan: Plan, reference: Copy, drilled: Copy) -> dict[str, Any]:
    judge = _Judge(plan, reference, drilled)
    rows = [judge.row(number, fault) for number, fault in enumerate(plan.faults)]
    order = audit(drilled.ledger)
    known = bool(drilled.ledger)
    completed = drilled.status == "succeeded" and drilled.end >= reference.end
    verdicts = [row["exact"] for row in rows] + ([False] if known and not order.ok else [])
    exact = False if False in verdicts or not completed else None if None in verdicts else True
    return {
        "survived": completed and all(row["survived"] for row in rows),
        "exact": exact,
        "resumed": not any(row["resumed"] is False for row in rows),
        "steps_lost": sum(row["steps_lost"] or 0 for row in rows),
        "steps": reference.end,
        "faults": rows,
        "sample_order": {"checked": known, "difference": order.difference if known else None},
        "ended": {"status": drilled.status, "step": drilled.end, "reason": drilled.reason},
        "compared": judge.names,
        "notes": judge.notes(),
    }


class _Judge:
    def __init__(self, plan: Plan, reference: Copy, drilled: Copy):
        self._plan, self._reference, self._drilled = plan, reference, drilled
        self._whole = {name: reference.history(name) for name in reference.points}
        going = reference.first("going")
        self._start = going.step if going else 0
        """Step at which a copy starts without a checkpoint of its own."""
        shared = by_weight([n for n in self._whole if n in drilled.points and not is_of_time(n)])
        calm = min(fault.at for fault in plan.faults) - 1
        self.names = [n for n in shared if self._differs(1, 0, calm, [n]) is None]
        """Metrics used to judge exactness: those that are equal in both copies before the first fault."""
        self._chance = None if self.names else self._differs(1, 0, calm, shared)

    def row(self, number: int, fault: Fault) -> dict[str, Any]:
        told = self._drilled.first("fault", fault=number)
        found = {"fault": fault.text, "what": fault.what, "target": fault.target, "at": fault.at, "happened": True}
        found |= {"survived": False, "steps_lost": None, "exact": None, "recover_s": None, "first_difference": None}
        found |= {"resumed": None, "note": None}
        if fault.what == "slow":
            return found | self._slow(fault)
        if told is None:
            reached = self._drilled.end
            why = (
                f"the job never reached step {fault.at}"
                if reached < fault.at
                else f"{fault.target} reported no step {fault.at}"
            )
            return found | {"happened": False, "survived": None, "note": f"did not happen: {why}"}
        if fault.what == "server-down":
            return found | self._outage(number, told)
        going = self._drilled.going_after(told.attempt)
        if going is None:
            reason = self._drilled.ends.get(told.attempt) or self._drilled.reason
            return found | {"note": f"the job did not continue: {reason or self._drilled.status}"}
        last = max(told.step, self._drilled.last_step(told.attempt))
        found |= {"survived": True, "steps_lost": last - going.step, "recover_s": round(going.at - told.at, 1)}
        found["resumed"] = resumed = going.step > self._start
        again = f"step {self._start}, where the job starts" if self._start else "the beginning"
        note = f"resumed from step {going.step}" if resumed else f"started again from {again}"
        return found | {"note": note} | self._exact(going.attempt, 0, told.attempt, going.step)

    def notes(self) -> list[str]:
        """Return remarks: attempts that ended for other reasons, and why exactness is unknown."""
        planned = {t.attempt for t in self._drilled.told if t.event == "fault" and self._ends(t.fault)}
        starts = [t.attempt for t in self._drilled.told if t.event == "going"]
        found = [
            f"attempt {attempt} ended for another reason: {self._drilled.ends.get(attempt) or 'unknown'}"
            for attempt in range(1, max(starts, default=1))
            if attempt not in planned
        ]
        if self._chance is not None:
            found.append(
                f"exactness is unknown: the copies differ before the first fault ({self._chance.words}); "
                "set a random seed in the script"
            )
        elif not self.names:
            found.append("exactness is unknown: the script logs no metrics with run.step")
        return found

    def _ends(self, number: int | None) -> bool:
        return number is not None and self._plan.faults[number].ends_attempt

    def _outage(self, number: int, told: DrillLine) -> dict[str, Any]:
        attempt, step = told.attempt, told.step
        cut, back, caught_up = (self._drilled.first(e, fault=number) for e in ("cut", "back", "caught_up"))
        went_on = self._drilled.ends.get(attempt) == "succeeded" or self._drilled.last_step(attempt) > step
        made = {name: self._drilled.history(name) for name in self._whole}
        missing = {
            s for name, whole in self._whole.items() for s in whole.keys() - made[name] if step < s <= self._drilled.end
        }
        found: dict[str, Any] = {"survived": went_on and not missing, "steps_lost": 0}
        if missing:
            found["note"] = f"{len(missing)} steps are missing from its metrics"
        elif cut and back:
            times = sorted(t for t in self._drilled.times.get(attempt, {}).values() if cut.at <= t <= back.at)
            pause = max((b - a for a, b in itertools.pairwise(times)), default=None)
            longest = f", at most {pause:.1f} s between two" if pause is not None else ""
            found["note"] = f"{len(times)} steps during the outage{longest}"
        elif cut:
            found["note"] = "the node ended before the outage did"
        if back and caught_up:
            found["recover_s"] = round(caught_up.at - back.at, 1)
        return found | self._exact(attempt, step, attempt, step)

    def _slow(self, fault: Fault) -> dict[str, Any]:
        until = fault.until or math.inf
        pace, normal = (_pace(copy, fault.at, until) for copy in (self._drilled, self._reference))
        gone_on = self._drilled.status == "succeeded" or self._drilled.end > fault.at
        found: dict[str, Any] = {"survived": gone_on, "steps_lost": 0}
        if pace and normal:
            found["note"] = (
                f"the job took {pace / normal:.1f} times as long per step ({pace:.3g} s, {normal:.3g} s undisturbed)"
            )
        return found | self._exact(1, fault.at, 1, fault.at)

    def _exact(self, attempt: int, low: int, before: int, state: int) -> dict[str, Any]:
        """Compare an attempt with the undisturbed copy after step `low`.

        The attempt continues from step `state` of attempt `before`. If that state already differed, this fault is not the
        cause, and exactness is unknown (None).
        """
        if not self.names:
            return {"exact": None}
        if self._differs(before, 0, state, self.names) is not None:
            return {"exact": None}
        later = [
            f.at for f in self._plan.faults if self._plan.attempt_of(f) == attempt and f.at > low and not f.ends_attempt
        ]
        found = self._differs(attempt, low + 1, min(later, default=math.inf), self.names)
        if found is not None:
            return {"exact": False, "first_difference": _as_row(found)}
        compared = any(step > low for n in self.names for step in self._drilled.points[n].get(attempt, {}))
        return {"exact": True if compared else None}

    def _differs(self, attempt: int, low: float, high: float, names: list[str]) -> Difference | None:
        """Return the first difference of these metrics between an attempt and the undisturbed copy, or None."""
        made = {name: self._drilled.points[name].get(attempt, {}) for name in names}
        return first_difference(self._whole, made, names, low, high)


def _pace(copy: Copy, low: int, high: float) -> float | None:
    """Return the median of the seconds per step between two steps, or None."""
    gaps = []
    for times in copy.times.values():
        made = [t for step, t in sorted(times.items()) if low < step <= high]
        gaps += [b - a for a, b in itertools.pairwise(made)]
    return statistics.median(gaps) if gaps else None


def describe(found: Mapping[str, Any]) -> str:
    return (
        f"{found['metric']} at step {found['step']}: {found['undisturbed']!r} undisturbed, {found['drilled']!r} drilled"
    )


def _as_row(found: Difference) -> dict[str, Any]:
    return {"step": found.step, "metric": found.name, "undisturbed": found.first, "drilled": found.second}
