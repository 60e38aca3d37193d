"""Search over all variants of Params on this machine or several, without a server.

The script gets its parameters from `given(MyParams)` and needs no other change. Started by itself, it trains the first
variant.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shoal.core.errors import UsageError
from shoal.core.records import Kind, kind_pattern
from shoal.sdk.trial import TRIAL
from shoal.train.hosts import Host
from shoal.train.launch_groups import Result, Task
from shoal.train.modes import Desk, run_pool
from shoal.train.params import Params
from shoal.train.preflight import Needs, Place

FILE = "params.json"
"""Name of the file with the parameters in a run directory."""
_Kind = TypeVar("_Kind", bound=Params)
_WANTED = re.compile(b"|".join(map(kind_pattern, (Kind.EVALUATION, Kind.FINISH))))


@dataclass(slots=True, kw_only=True)
class Trial:
    """One variant and its result."""

    params: Params
    directory: Path
    result: Result

    @property
    def score(self) -> float | None:
        """Best evaluation; smaller is better."""
        return self.result.score


def given(kind: type[_Kind]) -> _Kind:
    """Return the parameters that a search has chosen for this process; else the defaults, with the first value of each Range.

    Example:
        >>> params = given(MyParams)
    """
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
    """Train all variants and return them, the best first and those without a score last.

    Args:
        params: Parameters with Ranges.
        entry: The script, or the script and its arguments.
        places: Machines and their slots; by default one slot of this machine.
        workers: Workers of each variant. Each needs one slot of the same machine.
        gpus: Whether slots are GPUs.
        root: Folder of the search. With that of an earlier search, only unfinished variants are trained.
        desk: Output of messages, and requests to stop.

    Example:
        >>> trials = search(MyParams(lr=Range([1e-3, 1e-4]), epochs=1), "train.py")
        >>> print(trials[0].params.lr, trials[0].score)
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
    """Status and best score of a run, read from its spool. Only new lines are read each time."""

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
            if _WANTED.search(line):
                self._update(json.loads(line))

    def _update(self, record: dict[str, Any]) -> None:
        if record["k"] == Kind.FINISH:
            self._status = record.get("status")
        elif record["k"] == Kind.EVALUATION:
            values = {n.removeprefix("eval/"): v for n, v in record["v"].items() if isinstance(v, int | float)}
            judged = next((values[name] for name in ("error", "loss", *values) if name in values), None)
            if judged is not None and (self._best is None or judged < self._best):
                self._best = float(judged)
