"""A store in a directory of this machine."""

from __future__ import annotations

from pathlib import Path

from shoal.store.blobstore import BlobStore
from shoal.store.files import LocalBlobs


class LocalStore(BlobStore):
    def __init__(self, root: Path, *, compress: bool = True):
        """The directory is made at the first write, so that reading needs no write permission."""
        self.root = Path(root).absolute()
        super().__init__(LocalBlobs(self.root), index_path=self.root / "index.db", compress=compress)
