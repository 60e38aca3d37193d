"""Uploads from a browser that were interrupted and not continued: their files are removed after a day."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from shoal.server.context import Context
from shoal.store.materialize import remove_tree

logger = logging.getLogger(__name__)
KEPT_S = 24 * 3600.0
"""Seconds after its last part for which an interrupted upload can be continued."""
PARTS = "parts.jsonl"


def uploads_dir(ctx: Context) -> Path:
    return ctx.layout.server_dir / "uploads"


def drop_expired(ctx: Context) -> None:
    """Remove the interrupted uploads of all workspaces to which nothing was added for KEPT_S."""
    root = uploads_dir(ctx)
    try:
        folders = [folder for folder in root.iterdir() if folder.is_dir()] if root.is_dir() else []
        for folder in folders:
            drop_expired_in(folder)
    except OSError as error:
        logger.warning("interrupted uploads could not be removed: %s", error)


def drop_expired_in(folder: Path) -> None:
    """Remove the expired uploads in the folder of one workspace."""
    for upload in folder.iterdir():
        try:
            used = max(path.stat().st_mtime for path in (upload, upload / PARTS) if path.exists())
        except (OSError, ValueError):  # it was finished or given up meanwhile
            continue
        if time.time() - used > KEPT_S:
            remove_tree(upload)
