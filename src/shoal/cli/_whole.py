"""Files that are there whole or not at all, and never in place of another unless one says so."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shoal.core.errors import NameTaken


def refuse_existing(target: Path, option: str, *, force: bool) -> None:
    if target.exists() and not force:
        raise NameTaken(f"{target} exists already.", hint=f"Give another place ({option}), or replace it: --force")


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """Written beside the target, and put in its place when all is well."""
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
