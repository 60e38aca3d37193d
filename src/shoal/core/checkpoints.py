"""Checkpoints on the wire: captured from a job's /output-checkpoint or its working directory, or pushed by a user."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from shoal.core.artifacts import Manifest, check_path
from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

Place = Literal["output", "workdir"]
"""Directory a script wrote a checkpoint to: 'output' is /output-checkpoint, 'workdir' its working directory."""
WORKDIR = "workdir"
"""Name of the checkpoint of files directly in the working directory. Those in its folders are called workdir/FOLDER."""


class CheckpointFacts(Schema):
    """Facts read from Hugging Face's trainer_state.json and config.json, if present. Pickles are never read."""

    step: int | None = None
    train_loss: float | None = None
    eval_loss: float | None = None
    model: str | None = None
    version: str | None = None
    inference_ready: bool = False
    only_logs: bool = False
    """True if it holds only files of Weights & Biases or TensorBoard. It is stored, but no job resumes from it."""
    only_text: bool = False
    """True if it holds only settings, vocabularies and other text files. A job resumes from it only if it has no other
    checkpoint."""
    is_part: bool = False
    """True if it holds shards whose `.metadata` is on another node. No job resumes from these shards alone."""
    lacks: list[str] = []
    """Shards that its `.metadata` lists and that are on other nodes."""
    place: Place = "output"
    metrics: dict[str, float] = {}
    """Last value of each number in the trainer's log, used for `--keep-best`."""


class CheckpointCommit(Schema):
    """An agent's report of a complete checkpoint."""

    name: str = Field(max_length=255)
    """Name of the folder in the output directory, '.' for files directly in it, or a name below `workdir` for the working
    directory."""
    manifest: Manifest
    facts: CheckpointFacts = CheckpointFacts()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return value if value == "." else check_path(value)


class CheckpointPush(Schema):
    """A checkpoint from elsewhere, stored under a name of its own."""

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
    """True if retention never removes it."""
    damaged: bool = False
    only_logs: bool = False
    place: Place = "output"
    """Directory the script wrote it to: 'output' (/output-checkpoint) or 'workdir' (its working directory)."""


class CheckpointCommitted(View):
    """The answer to a commit: missing chunks, or the checkpoint."""

    missing: list[str] = []
    """Chunks the server does not have yet. While this list is not empty, nothing is committed: upload them and commit again."""
    checkpoint: CheckpointView | None = None


class CheckpointKeep(Schema):
    """Protect a checkpoint from retention, or end the protection."""

    keep: bool = True


class CheckpointExport(Schema):
    """Copy a checkpoint to S3-compatible storage or the Hugging Face Hub."""

    destination: str = Field(max_length=4096)
    """Destination as s3://bucket/prefix?endpoint=… or hf://org/name[@revision][/folder]; credentials come from the workspace's
    secrets or the environment of a private server."""
    credentials: dict[str, str] = {}
    """Environment name → secret name, e.g. AWS_SECRET_ACCESS_KEY → my-s3-secret, HF_TOKEN → my-hub-token."""
