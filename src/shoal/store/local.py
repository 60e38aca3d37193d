"""Store in a local directory."""

from __future__ import annotations

from pathlib import Path

from shoal.store.blobstore import BlobStore
from shoal.store.files import LocalBlobs


class LocalStore(BlobStore):
    """Store in a local directory."""

    def __init__(self, root: Path, *, compress: bool = True):
        """Open a store. The directory is created at the first write, so that reading needs no write permission."""
        self.root = Path(root).absolute()
        super().__init__(LocalBlobs(self.root), index_path=self.root / "index.db", compress=compress)
