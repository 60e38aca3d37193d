"""Files for their owner only, from their first byte on: keys, tokens, launches."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from shoal.core.durable import sync


def write_private(path: Path, text: str, *, durable: bool = False) -> None:
    """Whole or not at all. `durable`: it also outlives a power cut, which takes a wait for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with suppress(FileNotFoundError):
        aside.unlink()
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        aside.replace(path)
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()
    if durable:
        sync(path.parent)
