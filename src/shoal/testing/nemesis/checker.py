"""Compares what was found at the end with the history: pure functions of two JSON documents.

What was acknowledged is found, nothing is found twice, states change only as allowed, no slot was used twice, the ledger says
what the events say, nothing is stuck and nothing is left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from shoal.core.states import JobState
from shoal.core.sweeps import TrialState

LEAK_FILES, LEAK_BYTES = 40, 200 << 20
"""Open files and memory that a server may have at the end beyond those of a new one."""
_SLACK_S = 2.0
_STATES = {state.value for state in JobState}
_ENDED = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    """`lost`, `doubled`, `illegal`, `ledger`, `stuck`, `left`, `error` or `leak`."""
    subject: str
    what: str
    at: float | None = None
    """Seconds since the run began, if known."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.what}"


def check(history: dict[str, Any], found: dict[str, Any]) -> list[Finding]:
    """Return everything that must not be."""
    return [
        *_acknowledged(history["operations"], found),
        *_internal_errors(history["operations"]),
        *(finding for id, job in found["jobs"].items() for finding in _job(id, job, found["witness"].get(id, []))),
        *_display_value(history["shown"], found["jobs"]),
        *_slots(found),
        *_ledger(found),
        *_rest(history, found),
    ]


def _acknowledged(operations: list[dict[str, Any]], found: dict[str, Any]) -> Iterator[Finding]:
    names = Counter(job["name"] for job in found["jobs"].values())
    ids = {job["name"]: id for id, job in found["jobs"].items()}
    sweeps = Counter(sweep["name"] for sweep in found["sweeps"])
    keys = Counter(found["keys"])
    by_subject: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for op in operations:
        by_subject[op["subject"]].append(op)
    for kind, counted in (("job", names), ("sweep", sweeps), ("key", keys)):
        for name, count in counted.items():
            if count > 1:
                yield Finding("doubled", name, f"there are {count} {kind}s of this name")
    for subject, ops in by_subject.items():
        for op in (op for op in ops if op["result"] == "ok"):
            gone = any(
                other["kind"] in ("delete", "delete-dataset", "revoke") and other["result"] != "refused"
                for other in ops
            )
            at = op["began"]
            match op["kind"]:
                case "submit" if subject not in names and not gone:
                    yield Finding("lost", subject, "the job was acknowledged and is not there", at)
                case "submit" if subject in names and ids[subject] != op["answer"]["id"]:
                    yield Finding("lost", subject, "there is another job of this name", at)
                case "sweep" if subject not in sweeps:
                    yield Finding("lost", subject, "the sweep was acknowledged and is not there", at)
                case "key" if subject not in keys and not gone:
                    yield Finding("lost", subject, "the key was acknowledged and is not there", at)
                case "revoke" if subject in keys:
                    yield Finding("lost", subject, "its revocation was acknowledged and it is still there", at)
                case "delete" if op["args"]["id"] in found["jobs"]:
                    yield Finding("lost", subject, "its deletion was acknowledged and it is still there", at)
                case "delete-dataset" if subject in found["datasets"]:
                    yield Finding("lost", subject, "its deletion was acknowledged and it is still there", at)
                case "push" if not gone and found["datasets"].get(subject) != op["args"]["digest"]:
                    yield Finding("lost", subject, f"the pushed bytes are {found['datasets'].get(subject, 'gone')}", at)
                case "stop" if subject in names:
                    yield from _stopped(subject, ops, found["jobs"][ids[subject]], at)


def _stopped(subject: str, ops: list[dict[str, Any]], job: dict[str, Any], at: float) -> Iterator[Finding]:
    resumed = any(op["kind"] == "resume" and op["result"] != "refused" for op in ops)
    if not resumed and job["status"] not in _ENDED:
        yield Finding("lost", subject, f"its stop was acknowledged and it is {job['status']}", at)


def _internal_errors(operations: list[dict[str, Any]]) -> Iterator[Finding]:
    for op in operations:
        if op["code"] == "internal":
            yield Finding("error", op["subject"], f"{op['kind']}: {op['message']}", op["began"])


def _job(id: str, job: dict[str, Any], witness: Iterable[list[Any]]) -> Iterator[Finding]:
    yield from _events(job)
    if job["status"] not in _ENDED:
        yield Finding("stuck", job["name"], f"it is {job['status']}")
    lines = Counter(job["lines"])
    for line, count in lines.items():
        if count > 1:
            yield Finding("doubled", job["name"], f"line {line!r} is there {count} times")
    done: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for attempt, node, rank, step, _ in witness:
        done[attempt, node, rank].append(step)
    ends = {a["number"]: a for a in job["attempts"]}
    for (attempt, node, rank), steps in done.items():
        prefix = f"{attempt}/{node}/{rank}/step "
        have = sorted(int(line.removeprefix(prefix).split("/")[0]) for line in lines if line.startswith(prefix))
        if have != list(range(1, len(have) + 1)):
            gaps = sorted(set(range(1, (have or [0])[-1] + 1)) - set(have))
            yield Finding(
                "lost", job["name"], f"attempt {attempt}, rank {rank}: steps {gaps[:10]} are missing in the log"
            )
        if len(have) < len(steps) and _must_be_whole(ends.get(attempt), node):
            yield Finding("lost", job["name"], f"attempt {attempt}, rank {rank}: {len(have)} of {len(steps)} lines")
    yield from _points(job, done, ends)


def _must_be_whole(attempt: dict[str, Any] | None, node: int) -> bool:
    """True if all that a node's workers wrote has to arrive: its agent ended by itself, so it has delivered everything."""
    if attempt is None:
        return False
    of = next((n for n in attempt["nodes"] if n["index"] == node), None)
    return of is not None and of["state"] == "exited" and attempt["result"] == "succeeded"


def _points(job: dict[str, Any], done: dict[Any, list[int]], ends: dict[int, Any]) -> Iterator[Finding]:
    steps = [int(step) for step, _ in job["points"]]
    for step, count in Counter(steps).items():
        if count > 1:
            yield Finding("doubled", job["name"], f"step {step} of metric loss is there {count} times")
    wrong = [step for step, value in job["points"] if abs(value - 1 / step) > 1e-9]
    if wrong:
        yield Finding("lost", job["name"], f"metric loss has wrong values at steps {wrong[:10]}")
    if job["status"] == "succeeded" and job["steps"] is not None:
        missing = sorted(set(range(1, job["steps"] + 1)) - set(steps))
        if missing:
            yield Finding("lost", job["name"], f"metric loss has no value at {len(missing)} steps: {missing[:10]}")


def _events(job: dict[str, Any]) -> Iterator[Finding]:
    name = job["name"]
    seqs = [event["seq"] for event in job["events"]]
    if seqs != list(range(1, len(seqs) + 1)):
        yield Finding("lost", name, f"its events are numbered {seqs}")
    states = [event["kind"] for event in job["events"] if event["kind"] in _STATES]
    if states and states[0] != "queued":
        yield Finding("illegal", name, f"it began as {states[0]}")
    for before, after in pairwise(states):
        if not JobState(before).may_become(JobState(after)):
            yield Finding("illegal", name, f"it became {after} when it was {before}")
    if states and states[-1] != job["status"]:
        yield Finding("illegal", name, f"it is {job['status']} and its last event is {states[-1]}")
    numbers = [attempt["number"] for attempt in job["attempts"]]
    if sorted(numbers) != list(range(1, len(numbers) + 1)):
        yield Finding("lost", name, f"its attempts are numbered {numbers}")
    won = [attempt["number"] for attempt in job["attempts"] if attempt["result"] == "succeeded"]
    if len(won) > 1 or (job["status"] == "succeeded" and not won and job["attempts"]):
        yield Finding("illegal", name, f"it is {job['status']} and attempts {won} succeeded")


def _display_value(shown: dict[str, dict[str, float]], jobs: dict[str, Any]) -> Iterator[Finding]:
    for id, lines in shown.items():
        if id not in jobs:
            continue  # deleted
        have = set(jobs[id]["lines"])
        lost = {key: at for key, at in lines.items() if key not in have and "/-/" not in key}
        if lost:
            yield Finding(
                "lost", jobs[id]["name"], f"{len(lost)} lines were shown and are gone: {min(lost)}", min(lost.values())
            )


def _slots(found: dict[str, Any]) -> Iterator[Finding]:
    """Find moments at which more slots of a machine were charged than it has."""
    edges: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for entry in found["ledger"]:
        edges[entry["machine"]] += [(entry["start_ms"], entry["slots"]), (entry["end_ms"], -entry["slots"])]
    for machine, changes in edges.items():
        used, most = 0, 0
        for _, change in sorted(changes):
            used += change
            most = max(most, used)
        if most > found["slots"]:
            yield Finding("doubled", machine, f"{most} of {found['slots']} slots were used at one moment")


def _ledger(found: dict[str, Any]) -> Iterator[Finding]:
    for problem in [*found["ledger_problems"], *found["check_problems"]]:
        yield Finding("ledger", "server", problem)
    if found["ledger_open"]:
        yield Finding("ledger", "server", f"{found['ledger_open']} intervals are open, and nothing runs")
    spans: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for entry in found["ledger"]:
        spans[entry["job_id"], entry["attempt"], entry["node"]].append(entry)
        if entry["slot_ms"] != entry["slots"] * (entry["end_ms"] - entry["start_ms"]):
            yield Finding("ledger", entry["job_id"], f"{entry['slot_ms']} ms were charged for {entry}")
    for (id, number, node), entries in spans.items():
        ordered = sorted(entries, key=lambda e: e["start_ms"])
        if any(one["end_ms"] > other["start_ms"] for one, other in pairwise(ordered)):
            yield Finding("doubled", id, f"attempt {number}, node {node}: intervals of the ledger overlap")
        job = found["jobs"].get(id)
        attempt = next((a for a in job["attempts"] if a["number"] == number), None) if job else None
        if attempt is None or attempt["ended_at"] is None:
            continue
        begun, ended = _ms(attempt["created_at"]), _ms(attempt["ended_at"])
        if ordered[0]["start_ms"] < begun - _SLACK_S * 1000 or ordered[-1]["end_ms"] > ended + _SLACK_S * 1000:
            charged = (ordered[0]["start_ms"], ordered[-1]["end_ms"])
            yield Finding("ledger", id, f"attempt {number}: {charged} was charged, it lasted from {begun} to {ended}")
    for id, job in found["jobs"].items():
        for attempt in job["attempts"]:
            if attempt["result"] == "succeeded" and not any(key[:2] == (id, attempt["number"]) for key in spans):
                yield Finding("ledger", job["name"], f"attempt {attempt['number']} succeeded and was not charged")


def _ms(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() * 1000


def _rest(history: dict[str, Any], found: dict[str, Any]) -> Iterator[Finding]:
    for note in history["notes"]:
        kind = "lost" if note["kind"] in ("acknowledged", "silent") else "error"
        yield Finding(kind, note["subject"], note["what"], note["at"])
    for process in found["left"]:
        yield Finding("left", "machine", f"process {process}")
    for name in found["stuck"]:
        yield Finding("stuck", name, "it has not ended")
    for sweep in found["sweeps"]:
        if sweep["status"] == "succeeded" and _TRIAL_RUNS in sweep["trials"]:
            yield Finding("illegal", sweep["name"], f"it succeeded with trials {sweep['trials']}")
    for fault in history["faults"]:
        if fault["recovered_s"] is None:
            yield Finding("stuck", fault["id"], "the server was not well again in time", fault["ended"])
    old, new = found.get("last_server"), found.get("new_server")
    if old and new:
        if old["files"] > new["files"] + LEAK_FILES:
            yield Finding("leak", "server", f"{old['files']} open files, {new['files']} in a new server")
        if old["rss"] > new["rss"] + LEAK_BYTES:
            yield Finding("leak", "server", f"{old['rss'] >> 20} MiB of memory, {new['rss'] >> 20} in a new server")


_TRIAL_RUNS = TrialState.RUNNING.value
