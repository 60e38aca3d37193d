"""Auto mode for Params: every variant of them trained, over this machine or several, and the best one told.

The script asks `given(MyParams)` for its parameters, and is otherwise as it is. By itself it trains the first variant.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shoal.core.errors import UsageError
from shoal.sdk.trial import TRIAL
from shoal.train.gangs import Result, Task
from shoal.train.hosts import Host
from shoal.train.modes import Desk, run_pool
from shoal.train.params import Params
from shoal.train.preflight import Needs, Place

FILE = "params.json"
"""In the directory of a run: its parameters."""
_Kind = TypeVar("_Kind", bound=Params)


@dataclass(slots=True, kw_only=True)
class Trial:
    """One variant and how it went."""

    params: Params
    directory: Path
    result: Result

    @property
    def score(self) -> float | None:
        """The best evaluation; smaller is better."""
        return self.result.score


def given(kind: type[_Kind]) -> _Kind:
    """The parameters a search has chosen for this process; otherwise the defaults, and of ranges the first values."""
    spool = os.environ.get("SHOAL_SPOOL")
    if spool and (file := Path(spool).parent / FILE).is_file():
        return kind.from_dict(json.loads(file.read_text()))
    return next(kind().variants())


def search(
    params: Params,
    entry: str | Sequence[str],
    *,
    places: Sequence[Place] = (Place(Host(), (0,)),),
    workers: int = 1,
    gpus: bool = False,
    root: Path | None = None,
    desk: Desk | None = None,
) -> list[Trial]:
    """Train all variants; the best first, those without a score last. With the `root` of a search before, go on with that.

    `workers` is how many a variant takes, each a slot of one machine of `places`.
    """
    words = [entry] if isinstance(entry, str) else list(entry)
    if not words or not Path(words[0]).is_file():
        raise UsageError(f"there is no {words[0] if words else 'script'} in {Path.cwd()}")
    root = (root or Path("shoal-runs") / f"search-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    variants = list(params.variants())
    logs = [_Log(root / f"variant-{number}") for number in range(len(variants))]
    tasks = [_task(log, words, workers) for log in logs]
    for log, variant in zip(logs, variants, strict=True):
        log.directory.mkdir(parents=True, exist_ok=True)
        (log.directory / FILE).write_text(json.dumps(variant.to_dict(), indent=1) + "\n")
    left = [task for task, log in zip(tasks, logs, strict=True) if log.outcome() != "finished"]
    needs = Needs(workers=workers, gpus=gpus, paths=[words[0]])
    done = {r.task.name: r for r in run_pool(left, places, needs, desk or Desk())} if left else {}
    trials = [
        Trial(params=variant, directory=log.directory, result=done.get(task.name) or _before(task))
        for variant, log, task in zip(variants, logs, tasks, strict=True)
    ]
    return sorted(trials, key=lambda t: (t.score is None, t.score or 0.0))


def _task(log: _Log, words: list[str], workers: int) -> Task:
    env = {
        "SHOAL_SPOOL": str(log.directory / "spool"),
        "OUTPUT_DIR": str(log.directory / "checkpoints"),
        TRIAL: log.directory.name,
    }
    return Task(
        name=str(log.directory),
        entry=words,
        logs=log.directory / "logs",
        workers=workers,
        env=env,
        outcome=log.outcome,
        score=log.score,
    )


def _before(task: Task) -> Result:
    return Result(task=task, status="finished", seconds=0.0, score=task.score())


class _Log:
    """What a run says of itself in its spool, read on from where we were."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._offset = 0
        self._status: str | None = None
        self._best: float | None = None

    def outcome(self) -> str | None:
        self._read()
        return self._status

    def score(self) -> float | None:
        self._read()
        return self._best

    def _read(self) -> None:
        path = self.directory / "spool" / "rank-0.jsonl"
        try:
            with path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            if b'"k":"e"' in line or b'"k":"f"' in line:
                self._take(json.loads(line))

    def _take(self, record: dict[str, Any]) -> None:
        if record["k"] == "f":
            self._status = record.get("status")
        elif record["k"] == "e":
            values = {n.removeprefix("eval/"): v for n, v in record["v"].items() if isinstance(v, int | float)}
            judged = next((values[name] for name in ("error", "loss", *values) if name in values), None)
            if judged is not None and (self._best is None or judged < self._best):
                self._best = float(judged)
