"""Certificate of verify-resume: compare an unbroken run of a script with one that was killed and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.cli.shared.output import out
from shoal.cli.verify.guarantee import guarantee
from shoal.cli.verify.start import (
    DRAWS_AT_THE_START,
    Start,
    check_same_weights,
    read_starts,
    remarks,
    uncontrolled,
    unseeded,
)
from shoal.core.errors import Internal, JobFailed, MissingExtra, UsageError
from shoal.sdk.samples.sample_log import audit
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
    ("extra", "a value that the script saved"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    steps: int
    more: int

    def __post_init__(self) -> None:
        for name, value in (("--steps", self.steps), ("--more", self.more)):
            if value < 1:
                raise UsageError(f"{name} {value}: at least one step is needed.")

    @property
    def last(self) -> int:
        return self.steps + self.more

    def env_value(self, *, kill: bool, captured: bool = False) -> str:
        """Return the value of SHOAL_VERIFY. `captured`: kill only after an agent has uploaded the checkpoint to the server."""
        killing = {"kill_at": self.steps, "captured": captured} if kill else {}
        return json.dumps({"stop_at": self.last, **killing})


@dataclass(slots=True)
class Evidence:
    """Results of one of the runs."""

    name: str
    events: list[tuple[str, int]] = field(default_factory=list)
    """List of (event, step) of all attempts, from the SDK's log lines."""
    failure: str | None = None
    """Reason of its failure, or None."""
    checkpoint: Path | None = None
    """Checkpoint of the last step."""
    metrics: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    """Random generators and weights at the start of each attempt."""

    def read(self, lines: Iterable[str]) -> None:
        """Read events and starts from the SDK's lines in the log."""
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
    """Raise JobFailed with an explanation if one of the runs did not go as planned, so that they cannot be compared."""
    events = [*whole.events, *broken.events]
    if not events and not whole.failure:
        raise JobFailed(
            "The script reported no steps to Shoal, so there is nothing to verify.",
            hint="It needs shoal.init(), run.prepare(...) and run.step(...): see docs/howto/instrument-a-script.md",
        )
    if any(event == "unprepared" for event, _ in events):
        raise JobFailed(
            "The script calls run.step, but not run.prepare: Shoal cannot save or resume it.",
            hint="run.prepare(model, optimizer, loader, scheduler), see docs/howto/exact-resume.md",
        )
    for run in (whole, broken):
        # A failure after the last compared step does not matter.
        if run.failure and ("stopped", plan.last) not in run.events:
            raise JobFailed(f"{run.name} failed before it could be compared: {run.failure}")
    _check_whole(plan, whole)
    _check_broken(plan, broken)
    check_same_weights(whole.starts, broken.starts)


def conclude(plan: Plan, whole: Evidence, broken: Evidence, again: Callable[[], Evidence]) -> dict[str, Any]:
    """Return the certificate.

    again   repeats the broken run, with the same random start after the kill as before it. Called if there are differences and
            the script sets no seed: they may come from random numbers that it draws before run.prepare
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
            hint=f"Use a later step: --steps {started + plan.steps}",
        )
    if ("stopped", plan.last) not in run.events or run.checkpoint is None:
        raise JobFailed(
            f"The script ended before step {plan.last}, so there is no checkpoint to compare.",
            hint="Use fewer steps: --steps K --more M",
        )


def _check_broken(plan: Plan, run: Evidence) -> None:
    if ("killed", plan.steps) not in run.events:
        raise JobFailed(f"{run.name} was not killed at step {plan.steps}: it never reached that step.")
    if ("resumed", plan.steps) not in run.events:
        at = next((f"at step {step}" for event, step in run.events if event == "resumed"), "from the beginning")
        raise JobFailed(
            f"After the kill, the run did not resume from the checkpoint of step {plan.steps}, but started {at}.",
            hint='To resume, the script needs shoal.init(resume="auto"), not "never".',
        )
    if ("stopped", plan.last) not in run.events or run.checkpoint is None:
        raise JobFailed(f"The resumed run ended before step {plan.last}.")


def certify(plan: Plan, whole: Evidence, broken: Evidence) -> dict[str, Any]:
    """Compare the last checkpoints and the sample logs; return the certificate with the first differences."""
    assert whole.checkpoint is not None and broken.checkpoint is not None  # noqa: S101
    compared = _compare(whole.checkpoint, broken.checkpoint, uncontrolled(whole.starts, broken.starts))
    orders = [audit(run.ledger) for run in (whole, broken)]
    order = next((report.difference for report in orders if not report.ok), None)
    order_checked = all(run.ledger for run in (whole, broken))
    first = compared["differences"][0] if compared["differences"] else None
    return {
        "bit_exact": bool(compared["equal"]) and order is None,
        "guarantee": guarantee(compared, order=order, order_checked=order_checked),
        "steps": plan.steps,
        "more": plan.more,
        "world_size": compared["world_size"],
        "parallel": compared["parallel"],
        "global_batch": compared["global_batch"],
        "torch": compared["torch"],
        "device": compared["device"],
        "deterministic": compared["deterministic"],
        "hashes": {name: about["hashes"] for name, about in compared["files"].items()},
        "sample_order": {"checked": order_checked, "difference": order},
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
            ("device", _device(certificate)),
            *((f"hash of {name}", _hashes(pair)) for name, pair in certificate["hashes"].items()),
            ("sample order", _sample_order_text(certificate["sample_order"])),
            ("guarantee", certificate["guarantee"]["text"]),
        ],
        indent="  ",
    )
    if (first := certificate["first_difference"]) is not None:
        out.line(f"\nFirst difference: {describe(first)}")
        if (more := certificate["num_differences"] - 1) > 0:
            out.line(f"Further differences: {more}")
    if (metric := certificate["first_metric"]) is not None:
        out.line(
            f"First metric that differs: {metric['name']} at step {metric['step']}: "
            f"{metric['first']!r} unbroken, {metric['second']!r} resumed"
        )

    for remark in certificate["remarks"]:
        out.line(f"\nRemark: {remark}")


def describe(difference: Mapping[str, Any]) -> str:
    """Describe a difference in words: the kind of value, its place, and both values."""
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
            extent += f", by at most {largest:.3g}" if isinstance(largest, float) else f", by at most {largest}"
        return f"{part}, {place}, at [{index}]: {values} ({extent})"
    return f"{part}, {place} ({difference['what']}): {values}"


def _compare(first: Path, second: Path, uncontrolled: list[str]) -> dict[str, Any]:
    """Compare two checkpoints in a separate process, as this one must not import torch."""
    done = subprocess.run(
        [sys.executable, "-m", "shoal.sdk.compare", str(first), str(second), *uncontrolled],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "No module named 'torch'" in done.stderr:
        raise MissingExtra(
            "Comparing checkpoints needs torch on this machine.", hint="pip install 'shoal-train[train]'"
        )
    if done.returncode:
        raise Internal(f"The checkpoints could not be compared: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _first_metric(
    first: Mapping[str, Mapping[int, Any]], second: Mapping[str, Mapping[int, Any]]
) -> dict[str, Any] | None:
    """Return the first metric that differs, or None. A loss is preferred at the same step, as others may measure time."""
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


def _device(certificate: Mapping[str, Any]) -> str:
    kernels = "deterministic algorithms only" if certificate["deterministic"] else "any algorithms"
    return f"{certificate['device'] or 'unknown'}, {kernels}"


def _sample_order_text(order: Mapping[str, Any]) -> str:
    if order["difference"]:
        return str(order["difference"])
    return "the same, each sample once" if order["checked"] else "unknown: no data loader was prepared"
