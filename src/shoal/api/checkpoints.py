"""Checkpoints of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.checkpoints import CheckpointView


class Checkpoint:
    """A checkpoint on the server, made by `Job.checkpoints` and `Workspace.checkpoint`. `view` has all facts about it."""

    def __init__(self, client: Client, view: CheckpointView):
        self._client, self.view = client, view

    @property
    def id(self) -> str:
        """Id, as for `--checkpoint`."""
        return self.view.id

    @property
    def name(self) -> str:
        """Name of its folder in the output directory."""
        return self.view.name

    @property
    def step(self) -> int | None:
        """Training step at which it was saved, if known."""
        return self.view.step

    def download(self, destination: str | Path | None = None) -> Path:
        """Download the files. A repeated call downloads only what is missing.

        Args:
            destination: Folder to write to; default: one named after the job and the checkpoint, in the current directory.

        Returns:
            The folder.

        Example:
            >>> model.load_state_dict(torch.load(job.checkpoints()[-1].download() / "model.pt"))
        """
        parts = (self.view.job, self.name if self.name != "." else None)
        usual = "-".join(part.replace("/", "-") for part in parts if part) or self.id
        folder = Path(destination) if destination is not None else Path(usual)
        return self._client.checkpoints.fetch(self.id, folder, force=True).path

    def keep(self) -> None:
        """Protect it from retention.

        Example:
            >>> job.checkpoints()[-1].keep()
        """
        self.view = self._client.checkpoints.keep(self.id)

    def delete(self) -> None:
        """Delete it.

        Example:
            >>> for checkpoint in job.checkpoints()[:-1]:
            ...     checkpoint.delete()
        """
        self._client.checkpoints.delete(self.id)

    def facts(self) -> dict[str, Any]:
        """Return its main facts as column → value.

        Example:
            >>> job.checkpoints()[-1].facts()["eval_loss"]
        """
        view = self.view
        return {
            "name": view.name, "job": view.job, "step": view.step, "train_loss": view.train_loss,
            "eval_loss": view.eval_loss, "size": view.size, "timestamp": view.timestamp, "id": view.id,
        }  # fmt: skip

    def __repr__(self) -> str:
        at = "" if self.step is None else f", step {self.step}"
        return f"Checkpoint({self.view.job or ''}/{self.name}{at}, {self.view.size / 1e6:.1f} MB)"
