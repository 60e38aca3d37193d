"""What `shoal checkpoint` needs to know of checkpoints: names, places, what their files say, how they look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli._format import size
from shoal.cli._output import out
from shoal.cli.training_checkpoints import loss
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.checkpoints import CheckpointFacts, CheckpointView


def folder_name(view: CheckpointView) -> str:
    """What to call it on disk: a job's flat files have no name of their own."""
    return view.name if view.name != "." else view.job or view.id


def export_url(path: str, provider: str | None) -> str:
    """Where an export goes, as the server takes it."""
    from urllib.parse import quote

    if provider in ("folder", "file") or (provider is None and path.startswith(("/", "./", "../"))):
        return str(Path(path.removeprefix("file://")).absolute())
    url = path if "://" in path else f"s3://{path.lstrip('/')}"
    if provider is None and "://" not in path:
        raise UsageError(
            f"{path!r} could be a bucket or a folder.", hint="Give s3://BUCKET/PREFIX, ./FOLDER, or --storage-provider"
        )
    if provider in (None, "s3"):
        return url
    if provider.startswith(("https://", "http://")):
        return f"{url}{'&' if '?' in url else '?'}endpoint={quote(provider, safe='')}"
    raise UsageError(
        f"--storage-provider {provider!r} is not known.",
        hint="Give s3, folder, or the https:// address of an S3-compatible service (MinIO, R2, Ceph …)",
    )


def called(view: CheckpointView) -> str:
    return f"'{view.job}/{view.name}'" if view.job else f"'{view.name}'"


def facts_of(files: dict[str, Path]) -> CheckpointFacts:
    """What Hugging Face's files say of it; a name given by hand says nothing of the step."""
    from shoal.agent.completeness import facts, problem
    from shoal.core.checkpoints import CheckpointFacts

    described = next((files[name] for name in ("trainer_state.json", "config.json") if name in files), None)
    if described is None:
        return CheckpointFacts()
    root = described.parent
    here = [path for path, disk in files.items() if disk == root / path]
    if wrong := problem(root, here):
        out.warn(f"This may not be a whole checkpoint: {wrong}.")
    return CheckpointFacts.model_validate(facts("", root, here))


def print_checkpoint(view: CheckpointView) -> None:
    out.fields(
        [
            ("Checkpoint", view.name),
            ("Id", view.id),
            ("Job", view.job),
            ("Attempt", view.attempt),
            ("Node", view.node),
            ("Step", view.step),
            ("Train loss", loss(view.train_loss)),
            ("Eval loss", loss(view.eval_loss)),
            ("Model", view.model),
            ("Version", view.version),
            ("Inference ready", "yes" if view.inference_ready else "no"),
            ("Files", view.files),
            ("Size", f"{size(view.size)} ({view.size} bytes)"),
            ("Kept", "yes, whatever retention says" if view.kept else "as retention says"),
            ("Damaged", "yes: a part of it cannot be read any more" if view.damaged else None),
            ("Timestamp", view.timestamp),
        ]
    )
