"""Fetching a dataset or a checkpoint with a bar, and saying how to go on after Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.cli._transfer import TransferBar

if TYPE_CHECKING:
    from shoal.client._fetch import Fetched
    from shoal.store.pack import Progress

CONTINUES = "The same command goes on where this one stopped."


class Fetchable(Protocol):
    def fetch(self, ref: str, dest: Path, /, *, force: bool = False, progress: Progress | None = None) -> Fetched: ...


def fetch_with_bar(noun: Fetchable, reference: str, size: int, dest: Path, *, force: bool = False) -> Fetched:
    with TransferBar("Fetching", size, on_interrupt=CONTINUES) as bar:
        return noun.fetch(reference, dest, force=force, progress=bar.add)
