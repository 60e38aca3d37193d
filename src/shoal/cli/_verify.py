"""What two runs of one script, one of them killed and resumed, say about its resume: events, comparison, certificate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.cli._output import out
from shoal.cli._verify_start import (
    DRAWS_AT_THE_START,
    Start,
    check_same_weights,
    read_starts,
    remarks,
    uncontrolled,
    unseeded,
)
from shoal.core.errors import Internal, JobFailed, MissingExtra, UsageError
from shoal.sdk.ledger import audit
from shoal.sdk.verify import MARK, PREPARED

_PARTS = {
    "model.pt": "a weight of the model",
    "optimizer.pt": "the optimizer's state",
    "training.pt": "the training's state",
}
_KINDS = (
    ("rng", "a random generator"),
    ("random", "a random generator"),
    ("loader", "the position in the data"),
    ("feed", "the position in the data"),
    ("sched", "the scheduler's state"),
    ("scaler", "the gradient scaler's state"),
    ("extra", "a value of the script's own"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    steps: int
    more: int

    def __post_init__(self) -> None:
        for name, value in (("--steps", self.steps), ("--more", self.more)):
            if value < 1:
                raise UsageError(f"{name} {value}: it takes at least one step.")

    @property
    def last(self) -> int:
        return self.steps + self.more

    def asked(self, *, kill: bool, captured: bool = False) -> str:
        """The value of SHOAL_VERIFY. `captured`: an agent must have brought the checkpoint to the server before the kill."""
        killing = {"kill_at": self.steps, "captured": captured} if kill else {}
        return json.dumps({"stop_at": self.last, **killing})


@dataclass(slots=True)
class Evidence:
    """What one of the two runs has left."""

    name: str
    events: list[tuple[str, int]] = field(default_factory=list)
    """(event, step), of all attempts, as the SDK told them."""
    failure: str | None = None
    """How it ended, if not well."""
    checkpoint: Path | None = None
    """That of the last step."""
    metrics: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    """How each attempt started."""

    def read(self, lines: Iterable[str]) -> None:
        """Take over what the SDK told in the log."""
        told = list(lines)
        self.events, self.starts = read_events(told), read_starts(told)


def read_events(lines: Iterable[str]) -> list[tuple[str, int]]:
    found = []
    for line in lines:
        _, mark, text = line.partition(MARK)
        if mark:
            told = json.loads(text)
            if told["event"] != PREPARED:
                found.append((str(told["event"]), int(told["step"])))
    return found


def check(plan: Plan, whole: Evidence, broken: Evidence) -> None:
    """That both went as planned; else a message on why nothing can be said."""
    events = [*whole.events, *broken.events]
    if not events and not whole.failure:
        raise JobFailed(
            "The script never told Shoal of a step, so there is nothing to verify.",
            hint="It needs shoal.init(), run.prepare(...) and run.step(...): see docs/howto/instrument-a-script.md",
        )
    if any(event == "unprepared" for event, _ in events):
        raise JobFailed(
            "The script calls run.step, but not run.prepare: Shoal saves and resumes nothing for it.",
            hint="run.prepare(model, optimizer, loader, scheduler), see docs/howto/exact-resume.md",
        )
    for run in (whole, broken):
        # What a script does after the steps that count is its own affair.
        if run.failure and ("stopped", plan.last) not in run.events:
            raise JobFailed(f"{run.name} failed before it could be compared: {run.failure}")
    _check_whole(plan, whole)
    _check_broken(plan, broken)
    check_same_weights(whole.starts, broken.starts)


def conclude(plan: Plan, whole: Evidence, broken: Evidence, again: Callable[[], Evidence]) -> dict[str, Any]:
    """Return the certificate.

    again   repeats the broken run with the random start of before the kill. Called if there are differences, and the script sets
            no seed of its own: they may come of what it draws while it starts
    """
    check(plan, whole, broken)
    certificate = certify(plan, whole, broken)
    if certificate["bit_exact"] or not unseeded(broken.starts):
        return certificate
    repeated = again()
    check(plan, whole, repeated)
    second = certify(plan, whole, repeated)
    return second | {"remarks": certificate["remarks"] + [DRAWS_AT_THE_START] * bool(second["bit_exact"])}


def _check_whole(plan: Plan, run: Evidence) -> None:
    started = next((step for event, step in run.events if event in ("started", "resumed")), 0)
    if started >= plan.steps:
        raise JobFailed(
            f"The job starts from a checkpoint of step {started}.",
            hint=f"Kill it later: --steps {started + plan.steps}",
        )
    if ("stopped", plan.last) not in run.events or run.checkpoint is None:
        raise JobFailed(
            f"The script ended before step {plan.last}, so there is no checkpoint of it to compare.",
            hint="Take fewer steps: --steps K --more M",
        )


def _check_broken(plan: Plan, run: Evidence) -> None:
    if ("killed", plan.steps) not in run.events:
        raise JobFailed(f"{run.name} was not killed at step {plan.steps}: it never passed that step.")
    if ("resumed", plan.steps) not in run.events:
        at = next((f"at step {step}" for event, step in run.events if event == "resumed"), "from the beginning")
        raise JobFailed(
            f"After the kill it did not go on from the checkpoint of step {plan.steps}, but {at}.",
            hint='shoal.init(resume="auto") is what resumes; "never" does not.',
        )
    if ("stopped", plan.last) not in run.events or run.checkpoint is None:
        raise JobFailed(f"The resumed run ended before step {plan.last}.")


def certify(plan: Plan, whole: Evidence, broken: Evidence) -> dict[str, Any]:
    """The certificate, or what differs first and where."""
    assert whole.checkpoint is not None and broken.checkpoint is not None  # noqa: S101
    compared = _compare(whole.checkpoint, broken.checkpoint, uncontrolled(whole.starts, broken.starts))
    orders = [audit(run.ledger) for run in (whole, broken)]
    order = next((report.difference for report in orders if not report.ok), None)
    first = compared["differences"][0] if compared["differences"] else None
    return {
        "bit_exact": bool(compared["equal"]) and order is None,
        "steps": plan.steps,
        "more": plan.more,
        "world_size": compared["world_size"],
        "parallel": compared["parallel"],
        "global_batch": compared["global_batch"],
        "torch": compared["torch"],
        "hashes": {name: about["hashes"] for name, about in compared["files"].items()},
        "sample_order": {"checked": all(run.ledger for run in (whole, broken)), "difference": order},
        "first_difference": first,
        "differences": compared["differences"],
        "num_differences": compared["count"],
        "first_metric": None if compared["equal"] else _first_metric(whole.metrics, broken.metrics),
        "remarks": remarks(compared["left_out"], unseeded(broken.starts)),
        "runs": [whole.name, broken.name],
    }


def show(certificate: dict[str, Any]) -> None:
    k, m = certificate["steps"], certificate["more"]
    if certificate["bit_exact"]:
        out.styled(("Resume is bit-exact.", "bold green"))
    else:
        out.styled(("Resume is NOT exact.", "bold red"))
    out.fields(
        [
            ("unbroken", f"{k + m} steps"),
            ("broken", f"{k} steps, kill -9, resumed, {m} steps"),
            ("workers", certificate["world_size"]),
            ("parallel", certificate["parallel"]),
            ("torch", certificate["torch"]),
            *((f"hash of {name}", _hashes(pair)) for name, pair in certificate["hashes"].items()),
            ("sample order", _order(certificate["sample_order"])),
        ],
        indent="  ",
    )
    if (first := certificate["first_difference"]) is not None:
        out.line(f"\nFirst difference: {describe(first)}")
        if (more := certificate["num_differences"] - 1) > 0:
            out.line(f"Places that differ besides: {more}")
    if (metric := certificate["first_metric"]) is not None:
        out.line(
            f"First metric that differs: {metric['name']} at step {metric['step']}: "
            f"{metric['first']!r} unbroken, {metric['second']!r} resumed"
        )

    for remark in certificate["remarks"]:
        out.line(f"\nRemark: {remark}")


def describe(difference: Mapping[str, Any]) -> str:
    """In words: what kind of thing, where it is, and both values."""
    file, where = difference["file"], difference["where"]
    part = _PARTS.get(file, "a file")
    if file == "training.pt":
        part = next((words for key, words in _KINDS if key in where.lower()), part)
    place = f"{where} in {file}" if where else file
    values = f"{difference['first']!r} unbroken, {difference['second']!r} resumed"
    if difference["what"] == "tensor":
        index = ", ".join(map(str, difference["index"]))
        extent = f"{difference['count']} of {difference['of']} values"
        if (largest := difference.get("max_difference")) is not None:
            extent += f", by {largest:.3g} at most" if isinstance(largest, float) else f", by {largest} at most"
        return f"{part}, {place}, at [{index}]: {values} ({extent})"
    return f"{part}, {place} ({difference['what']}): {values}"


def _compare(first: Path, second: Path, uncontrolled: list[str]) -> dict[str, Any]:
    """In a process of its own: this one never imports torch."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal.sdk.compare", str(first), str(second), *uncontrolled],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "No module named 'torch'" in done.stderr:
        raise MissingExtra("Comparing checkpoints needs torch here.", hint="pip install 'shoal[train]'")
    if done.returncode:
        raise Internal(f"The checkpoints could not be compared: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _first_metric(
    first: Mapping[str, Mapping[int, Any]], second: Mapping[str, Mapping[int, Any]]
) -> dict[str, Any] | None:
    """The earliest step at which a metric differs; of several the loss, as others may tell of time."""
    found = [
        (step, "loss" not in name, name)
        for name in first.keys() & second.keys()
        for step in first[name].keys() & second[name].keys()
        if first[name][step] != second[name][step]
    ]
    if not found:
        return None
    step, _, name = min(found)
    return {"name": name, "step": step, "first": first[name][step], "second": second[name][step]}


def _hashes(pair: list[str]) -> str:
    return pair[0] if pair[0] == pair[1] else f"{pair[0]} unbroken, {pair[1]} resumed"


def _order(order: Mapping[str, Any]) -> str:
    if order["difference"]:
        return str(order["difference"])
    return "the same, each sample once" if order["checked"] else "not known: no loader was prepared"
