"""Work of `dataset push`: upload local files, or let the server fetch a URL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.dataset.source import gather
from shoal.cli.shared.fetching import CONTINUES
from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.cli.shared.transfer import INTERRUPTED, TransferBar
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
        # Files unpacked from an archive are temporary: caching their hashes would be useless.
        lasting = None if gathered.origin["kind"] == "archive" else known
        pushed = client.datasets.push(name, gathered.entries, gathered.origin, bar.add, known=lasting)
    shown = pushed.dataset.model_dump(mode="json") | {"unchanged": pushed.unchanged, "sent": pushed.sent}
    out.show(shown, lambda: _print_pushed(pushed))
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
                out.info(
                    f"The server continues the import. See its progress: {out.prog} dataset inspect {dataset.name}"
                )
                return INTERRUPTED
    if dataset.status == "error":
        raise Refused(f"Dataset '{name}' could not be imported: {dataset.error}")

    def show() -> None:
        out.line(f"{dataset.name}@{dataset.version}")
        if detach:
            out.info(f"The server is fetching it. See its progress: {out.prog} dataset inspect {dataset.name}")
        elif dataset.id != begun.id:
            out.info(f"Unchanged: this is version {dataset.version} ({_extent(dataset)}).")
        else:
            out.info(f"Imported version {dataset.version}: {_extent(dataset)}.")

    out.show(dataset, show)
    return 0


class _Watch:
    """Callback that shows the progress of an import, as reported by the server, on a transfer bar."""

    def __init__(self, bar: TransferBar):
        self._bar, self._done = bar, 0

    def __call__(self, view: DatasetView) -> None:
        done, total = (int(view.origin.get(k) or 0) for k in ("progress", "total"))
        self._bar.expect(total)
        self._bar.add(done - self._done)
        self._done = done


def _print_pushed(pushed: Pushed) -> None:
    dataset = pushed.dataset
    out.line(f"{dataset.name}@{dataset.version}")
    if pushed.unchanged:
        healed = f" {size(pushed.sent)} was missing on the server and has been sent again." if pushed.sent else ""
        out.info(f"Unchanged: this is version {dataset.version} ({_extent(dataset)}).{healed}")
    else:
        new = "New version" if dataset.version > 1 else "Version"
        out.info(f"{new} {dataset.version}: {_extent(dataset)} ({size(pushed.sent)} sent).")


def _extent(dataset: DatasetView) -> str:
    return f"{plural(dataset.files, 'file')}, {size(dataset.size)}"
