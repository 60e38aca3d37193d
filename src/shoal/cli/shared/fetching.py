"""Download of a dataset or a checkpoint with a progress bar, and the hint how to continue after Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.cli.shared.transfer import TransferBar

if TYPE_CHECKING:
    from shoal.client._fetch import Fetched
    from shoal.store.pack import Progress

CONTINUES = "Run the same command again to continue."


class Fetchable(Protocol):
    def fetch(self, ref: str, dest: Path, /, *, force: bool = False, progress: Progress | None = None) -> Fetched: ...


def fetch_with_bar(noun: Fetchable, reference: str, size: int, dest: Path, *, force: bool = False) -> Fetched:
    with TransferBar("Fetching", size, on_interrupt=CONTINUES) as bar:
        return noun.fetch(reference, dest, force=force, progress=bar.add)
