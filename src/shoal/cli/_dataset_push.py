"""`dataset push` at work: files from here, or a URL that the server fetches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli._dataset_source import gather
from shoal.cli._fetching import CONTINUES
from shoal.cli._format import plural, size
from shoal.cli._output import out
from shoal.cli._session import connect
from shoal.cli._transfer import INTERRUPTED, TransferBar
from shoal.core.errors import Refused
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client.datasets import Pushed
    from shoal.core.datasets import DatasetView


def push_files(name: str, paths: Sequence[Path], *, unpack: bool, follow_links: bool) -> int:
    from shoal.store.known import KnownFiles

    with (
        gather(paths, unpack=unpack, follow_links=follow_links) as gathered,
        connect() as client,
        closing(KnownFiles(Layout().cache_dir / "hashed-files.db")) as known,
        TransferBar("Pushing", gathered.size, on_interrupt=CONTINUES) as bar,
    ):
        # What was unpacked to be pushed is never seen again.
        lasting = None if gathered.origin["kind"] == "archive" else known
        pushed = client.datasets.push(name, gathered.entries, gathered.origin, bar.add, known=lasting)
    shown = pushed.dataset.model_dump(mode="json") | {"unchanged": pushed.unchanged, "sent": pushed.sent}
    out.show(shown, lambda: _tell(pushed))
    return 0


def push_url(name: str, url: str, credentials: dict[str, str], *, detach: bool) -> int:
    with connect() as client:
        dataset = begun = client.datasets.import_url(name, url, credentials=credentials)
        if not detach:
            try:
                with TransferBar("Importing", 0) as bar:
                    dataset = client.datasets.wait(begun, _Watch(bar))
            except KeyboardInterrupt:
                out.end_line()
                out.say(f"The server goes on fetching. See how far it is: {out.prog} dataset inspect {dataset.name}")
                return INTERRUPTED
    if dataset.status == "error":
        raise Refused(f"Dataset '{name}' could not be imported: {dataset.error}")

    def tell() -> None:
        out.line(f"{dataset.name}@{dataset.version}")
        if detach:
            out.say(f"The server fetches it. See how far it is: {out.prog} dataset inspect {dataset.name}")
        elif dataset.id != begun.id:
            out.say(f"Unchanged: this is version {dataset.version} ({_extent(dataset)}).")
        else:
            out.say(f"Imported version {dataset.version}: {_extent(dataset)}.")

    out.show(dataset, tell)
    return 0


class _Watch:
    """What the server says of an import, as progress."""

    def __init__(self, bar: TransferBar):
        self._bar, self._done = bar, 0

    def __call__(self, view: DatasetView) -> None:
        done, total = (int(view.origin.get(k) or 0) for k in ("progress", "total"))
        self._bar.expect(total)
        self._bar.add(done - self._done)
        self._done = done


def _tell(pushed: Pushed) -> None:
    dataset = pushed.dataset
    out.line(f"{dataset.name}@{dataset.version}")
    if pushed.unchanged:
        healed = f" {size(pushed.sent)} of it was not on the server any more and has been sent." if pushed.sent else ""
        out.say(f"Unchanged: this is version {dataset.version} ({_extent(dataset)}).{healed}")
    else:
        new = "New version" if dataset.version > 1 else "Version"
        out.say(f"{new} {dataset.version}: {_extent(dataset)} ({size(pushed.sent)} sent).")


def _extent(dataset: DatasetView) -> str:
    return f"{plural(dataset.files, 'file')}, {size(dataset.size)}"
