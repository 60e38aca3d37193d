"""Checkpoints on the wire: captured from a job's /output-checkpoint or its working directory, or pushed by hand."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from shoal.core.artifacts import Manifest, check_path
from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

Place = Literal["output", "workdir"]
"""Place a script wrote a checkpoint to: /output-checkpoint, or to its working directory."""
WORKDIR = "workdir"
"""Name of the checkpoint of files directly in the working directory; those of its folders are called workdir/FOLDER."""


class CheckpointFacts(Schema):
    """Read from Hugging Face's trainer_state.json and config.json where they are; never from pickles."""

    step: int | None = None
    train_loss: float | None = None
    eval_loss: float | None = None
    model: str | None = None
    version: str | None = None
    inference_ready: bool = False
    only_logs: bool = False
    """Files of Weights & Biases or TensorBoard: kept like any other, but no job goes on from them."""
    only_text: bool = False
    """Settings, vocabularies and the like: a job that has saved more goes on from that."""
    is_part: bool = False
    """Shards whose `.metadata` is on another node: nothing goes on from them alone."""
    lacks: list[str] = []
    """Shards that its `.metadata` names and other nodes have."""
    place: Place = "output"
    metrics: dict[str, float] = {}
    """Last known value of every number in the trainer's log, for `--keep-best`."""


class CheckpointCommit(Schema):
    """An agent's report of a complete checkpoint."""

    name: str = Field(max_length=255)
    """The sub-directory's name, or '.' for files directly in the output directory; below `workdir` for the working directory."""
    manifest: Manifest
    facts: CheckpointFacts = CheckpointFacts()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return value if value == "." else check_path(value)


class CheckpointPush(Schema):
    """A checkpoint brought from elsewhere, under a name of its own."""

    name: str
    manifest: Manifest
    facts: CheckpointFacts = CheckpointFacts()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return check_name(value, "checkpoint name")


class CheckpointView(View):
    id: str
    name: str
    job_id: str | None
    job: str | None
    attempt: int | None
    node: int | None
    step: int | None
    train_loss: float | None
    eval_loss: float | None
    model: str | None
    version: str | None
    inference_ready: bool
    timestamp: Utc
    size: int
    files: int
    manifest_id: str
    kept: bool
    """Retention never removes it."""
    damaged: bool = False
    only_logs: bool = False
    place: Place = "output"
    """Place the script wrote it to: 'output' (/output-checkpoint) or 'workdir', its working directory."""


class CheckpointCommitted(View):
    missing: list[str] = []
    checkpoint: CheckpointView | None = None


class CheckpointKeep(Schema):
    keep: bool = True


class CheckpointExport(Schema):
    """Write a checkpoint to an S3-compatible place."""

    destination: str = Field(max_length=4096)
    """s3://bucket/prefix?endpoint=…; credentials come from the workspace's secrets or the server's environment."""
    credentials: dict[str, str] = {}
    """Environment name → secret name, e.g. AWS_SECRET_ACCESS_KEY → my-s3-secret."""


class Retention(Schema):
    """How many of a job's checkpoints stay. Never fewer than one good one."""

    keep_last: int | None = Field(default=None, ge=1)
    keep_best: str | None = None
    """A metric's name, smaller is better; prefix '-' for larger is better."""

    def chosen(self, rows: list[dict[str, Any]]) -> set[str]:
        """Ids that stay, of rows (oldest first) with id, name, metrics and kept. Pure."""
        if self.keep_last is None and self.keep_best is None:
            return {row["id"] for row in rows}
        stay = {row["id"] for row in rows if row["kept"]}
        stay |= {row["id"] for row in rows[-(self.keep_last or 1) :]}
        if self.keep_best is not None:
            sign, metric = (-1, self.keep_best[1:]) if self.keep_best.startswith("-") else (1, self.keep_best)
            scored = [row for row in rows if metric in row["metrics"]]
            stay |= {row["id"] for row in sorted(scored, key=lambda r: sign * r["metrics"][metric])[:1]}
        return stay
