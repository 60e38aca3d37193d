"""Helpers of `shoal checkpoint`: folder names, export URLs, facts read from files, and the page of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.shared.format import size
from shoal.cli.shared.output import out
from shoal.cli.training.checkpoints import loss
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.core.checkpoints import CheckpointFacts, CheckpointView


def folder_name(view: CheckpointView) -> str:
    """Return the folder name of a checkpoint on disk. Files directly in the output folder (".") get the job's name."""
    return view.name if view.name != "." else view.job or view.id


def export_url(path: str, provider: str | None) -> str:
    """Return the destination of an export as a URL or absolute path, in the form that the server accepts."""
    from urllib.parse import quote

    if provider in ("folder", "file") or (provider is None and path.startswith(("/", "./", "../"))):
        return str(Path(path.removeprefix("file://")).absolute())
    url = path if "://" in path else f"s3://{path.lstrip('/')}"
    if provider is None and "://" not in path:
        raise UsageError(
            f"{path!r} could be a bucket or a folder.", hint="Use s3://BUCKET/PREFIX, ./FOLDER, or --storage-provider"
        )
    if provider in (None, "s3"):
        return url
    if provider.startswith(("https://", "http://")):
        return f"{url}{'&' if '?' in url else '?'}endpoint={quote(provider, safe='')}"
    raise UsageError(
        f"Unknown --storage-provider {provider!r}.",
        hint="Use s3, folder, or the https:// URL of an S3-compatible service (MinIO, R2, Ceph …)",
    )


def called(view: CheckpointView) -> str:
    return f"'{view.job}/{view.name}'" if view.job else f"'{view.name}'"


def facts_of(files: dict[str, Path]) -> CheckpointFacts:
    """Return the facts in Hugging Face's files. The step is never guessed from the name, which the user has chosen."""
    from shoal.agent.data.completeness import facts, problem
    from shoal.core.checkpoints import CheckpointFacts

    described = next((files[name] for name in ("trainer_state.json", "config.json") if name in files), None)
    if described is None:
        return CheckpointFacts()
    root = described.parent
    here = [path for path, disk in files.items() if disk == root / path]
    if wrong := problem(root, here):
        out.warn(f"This checkpoint may be incomplete: {wrong}.")
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
            ("Kept", "yes, protected from automatic deletion" if view.kept else "according to the retention rules"),
            ("Damaged", "yes: part of it can no longer be read" if view.damaged else None),
            ("Timestamp", view.timestamp),
        ]
    )
