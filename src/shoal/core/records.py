"""Records that a training script writes to its spool, and that agent, server and importer read.

A spool is a file of JSON lines, one per record. Every line has the time `t` (seconds since 1970), the line number `n` and the
kind `k`, one letter, followed by the fields of that kind. The agent adds `rank` and `q` (the line number in the file it read)
before it sends a line to the server. The letters and field names are the wire format of 0.1 and never change; a new kind gets
a new letter.

Standard library only, and quick to import, since every agent and every training process does: `dataclasses` would cost a
hundredth of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self, dataclass_transform


class Kind(StrEnum):
    """Kind of a record. Equal to its letter, so that a decoded line can be compared without conversion."""

    STEP = "s"
    EVALUATION = "e"
    PROGRESS = "p"
    FINISH = "f"
    CONFIG = "h"
    DATA = "d"
    SAMPLES = "l"
    CHECKPOINT = "c"
    WARNING = "w"
    MEDIA = "m"
    BUG = "b"
    DRILL = "x"
    SCRAPED = "g"
    DISPLAY = "y"


@dataclass_transform(kw_only_default=True)
class Record:
    """Base of all records: `encode` gives the fields as they stand in a line, `decode` reads them back."""

    kind: ClassVar[Kind]
    keys: ClassVar[Mapping[str, str]] = {"step": "i", "values": "v", "session": "x", "resumed_step": "from"}
    """Fields that have another name in the line."""

    def __init__(self, **fields: Any) -> None:
        for name in self.names():
            if name in fields:
                setattr(self, name, fields.pop(name))
            elif not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} needs {name}")
        if fields:
            raise TypeError(f"{type(self).__name__} has no {', '.join(fields)}")

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the fields."""
        return [name for name in cls.__annotations__ if name not in Record.__annotations__]

    def encode(self) -> dict[str, Any]:
        """Return the fields of the line, without time, line number and kind."""
        return {self.keys.get(name, name): getattr(self, name) for name in self.names()}

    @classmethod
    def decode(cls, line: Mapping[str, Any]) -> Self:
        """Return the record in a decoded line. Optional fields may be missing; other keys are ignored."""
        keys = {name: cls.keys.get(name, name) for name in cls.names()}
        return cls(**{name: line[key] for name, key in keys.items() if key in line})


class Step(Record):
    """Numbers of one training step. Written by `Spool.write_step`, which formats the line itself."""

    kind: ClassVar[Kind] = Kind.STEP
    step: int
    values: Mapping[str, Any]


class Evaluation(Record):
    """Results of an evaluation after a step; texts are allowed beside numbers."""

    kind: ClassVar[Kind] = Kind.EVALUATION
    step: int
    values: Mapping[str, Any]


class Progress(Record):
    """Position of the training: step of `total`, epoch of `epochs`, and whether it has reached its target."""

    kind: ClassVar[Kind] = Kind.PROGRESS
    step: int
    total: int | None = None
    epoch: float | None = None
    epochs: float | None = None
    done: bool = False


class Finish(Record):
    """End of the run: `finished`, `stopped`, `failed` or `skipped`, and the reason."""

    kind: ClassVar[Kind] = Kind.FINISH
    step: int
    status: str
    why: str | None = None


class Config(Record):
    """Hyperparameters of the run."""

    kind: ClassVar[Kind] = Kind.CONFIG
    values: Mapping[str, Any]


class Data(Record):
    """Data set of one prepared loader; the sample log of the same session and name refers to it."""

    kind: ClassVar[Kind] = Kind.DATA
    name: str
    size: int
    seed: int
    batch: int
    drop_last: bool
    shuffle: bool
    session: str
    resumed_step: int


class Samples(Record):
    """Line of the sample log: the batches that a range of steps used on one rank, and their checksum."""

    kind: ClassVar[Kind] = Kind.SAMPLES
    keys: ClassVar[Mapping[str, str]] = {
        "epoch": "e", "steps": "i", "batches": "p", "checksum": "c", "rank": "r", "session": "x",
    }  # fmt: skip
    name: str
    epoch: int
    steps: list[int]
    batches: list[int]
    checksum: int
    rank: list[int]
    """Rank and number of ranks."""
    session: str


class Checkpoint(Record):
    """Checkpoint that is complete on disk."""

    kind: ClassVar[Kind] = Kind.CHECKPOINT
    step: int
    name: str


class Warning(Record):
    """Warning of the SDK, shown in the job's log."""

    kind: ClassVar[Kind] = Kind.WARNING
    code: str
    text: str


class Media(Record):
    """Image, figure or table, in a file beside the spool."""

    kind: ClassVar[Kind] = Kind.MEDIA
    step: int
    name: str
    type: str
    file: str
    mime: str


class Bug(Record):
    """Capsule of a failed step, in the job's output directory: what is needed to replay it."""

    kind: ClassVar[Kind] = Kind.BUG
    step: int
    seen: int | None = None
    name: str
    error: str
    text: str
    where: str


class Drill(Record):
    """Fault of a fire drill that a worker asks its agent to inject."""

    kind: ClassVar[Kind] = Kind.DRILL
    do: str
    fault: int
    seconds: float | None = None


class Scraped(Record):
    """Numbers that the agent read off the output of a script without the SDK."""

    kind: ClassVar[Kind] = Kind.SCRAPED
    step: int
    values: Mapping[str, Any]


class Display(Record):
    """Settings of a metric in the console (`metric` is its name or a pattern), or a chart that the script defines."""

    kind: ClassVar[Kind] = Kind.DISPLAY
    metric: str | None = None
    values: Mapping[str, Any]


RECORDS: Mapping[Kind, type[Record]] = {
    record.kind: record
    for record in (
        Step,
        Evaluation,
        Progress,
        Finish,
        Config,
        Data,
        Samples,
        Checkpoint,
        Warning,
        Media,
        Bug,
        Drill,
        Scraped,
        Display,
    )
}

SERIES = {Kind.STEP: "step", Kind.EVALUATION: "eval", Kind.SCRAPED: "log"}
"""Kinds whose values the server keeps as points of curves, with the name of the axis."""
KEPT = frozenset({Kind.DATA, Kind.SAMPLES, Kind.CONFIG, Kind.CHECKPOINT, Kind.FINISH, Kind.WARNING, Kind.DISPLAY})
"""Kinds the server keeps as they are."""
AGENT_ONLY = frozenset({Kind.PROGRESS, Kind.MEDIA, Kind.BUG, Kind.DRILL})
"""Kinds that the agent acts on and that reach the server another way (heartbeat, upload) or not at all."""
PATIENT = frozenset({Kind.CONFIG, Kind.DISPLAY, Kind.DATA, Kind.SAMPLES, Kind.WARNING})
"""Kinds that alone are no reason to create a run directory."""


def kind_pattern(kind: Kind) -> bytes:
    """Return a regular expression that finds the kind in an undecoded line."""
    return rb'"k"\s*:\s*"' + kind.value.encode() + rb'"'
