"""Atomic output files: a file appears complete or not at all, and replaces an existing one only with `--force`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shoal.core.errors import NameTaken


def refuse_existing(target: Path, option: str, *, force: bool) -> None:
    if target.exists() and not force:
        raise NameTaken(
            f"{target} already exists.", hint=f"Choose another path ({option}), or replace it with --force."
        )


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file beside the target; rename it to the target on success, delete it on any exception."""
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        made = Path(file.name)
        try:
            yield file.file
            file.flush()
            made.chmod(0o644)
            made.replace(target)
        except BaseException:
            made.unlink(missing_ok=True)
            raise
