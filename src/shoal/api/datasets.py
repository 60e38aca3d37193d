"""Datasets of a workspace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.datasets import DatasetView


class Dataset:
    """One version of a dataset on the server, made by `Workspace.dataset`. `view` has all facts about it."""

    def __init__(self, client: Client, view: DatasetView):
        self._client, self.view = client, view

    @property
    def name(self) -> str:
        """Name, which all versions share."""
        return self.view.name

    @property
    def version(self) -> int:
        """Number of this version."""
        return self.view.version

    def download(self, destination: str | Path | None = None) -> Path:
        """Download the files. A repeated call downloads only what is missing.

        Args:
            destination: Folder to write to; default: one named after the dataset, in the current directory.

        Returns:
            The folder.

        Example:
            >>> space.dataset("reviews").download("data")
        """
        folder = Path(destination) if destination is not None else Path(self.name)
        return self._client.datasets.fetch(f"{self.name}@{self.version}", folder, force=True).path

    def facts(self) -> dict[str, Any]:
        """Return its main facts as column → value.

        Example:
            >>> space.dataset("reviews").facts()["size"]
        """
        view = self.view
        known = {"name": view.name, "version": view.version, "status": str(view.status), "size": view.size}
        return known | {"files": view.files, "created_at": view.created_at, "id": view.id}

    def __repr__(self) -> str:
        return f"Dataset({self.name}@{self.version}, {self.view.files} files, {self.view.size / 1e6:.1f} MB)"
