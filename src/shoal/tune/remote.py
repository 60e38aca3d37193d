"""Sweep of a script on a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from shoal.client.client import Client
from shoal.core.errors import EntryNotFound, JobFailed, UsageError
from shoal.core.names import did_you_mean
from shoal.core.settings import ServerSettings
from shoal.core.sweeps import SweepSpec, SweepState, SweepView, TrialView
from shoal.store.pack import pack_tree


class RemoteSweep:
    """Sweep on a server. Every property is a request to the server. Close it, or use `with`.

    The sweep keeps running on the server when this process ends.
    """

    def __init__(self, client: Client, name: str):
        self.name = name
        self._client = client

    @property
    def view(self) -> SweepView:
        """Current state: status, counts, time left, importance of the parameters."""
        return self._client.sweeps.get(self.name)

    @property
    def trials(self) -> list[TrialView]:
        """Trials in the order they were started."""
        return list(self._client.sweeps.all_trials(self.name))

    @property
    def best(self) -> TrialView | None:
        """Best trial so far; None if there is no result."""
        return self.view.best

    def wait(self, timeout_s: float | None = None) -> RemoteSweep:
        """Wait until the sweep has ended and return it. Raise TimedOut after `timeout_s`, JobFailed if it failed.

        Example: `best = shoal.sweep("train.py", {"lr": [1e-4, 3e-4]}).wait().best`
        """
        view = self._client.sweeps.wait(self.name, timeout_s=timeout_s)
        if view.status is SweepState.FAILED:
            raise JobFailed(f"Sweep '{self.name}' failed: {view.reason}", hint=f"shoal sweep trials {self.name}")
        return self

    def stop(self) -> None:
        """Stop the sweep: no further trials start, and running trials are stopped like jobs."""
        self._client.sweeps.stop(self.name)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> RemoteSweep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def submit(client: Client, spec: SweepSpec, folder: Path) -> RemoteSweep:
    """Send the folder's code to the server and create the sweep of its script."""
    packed = pack_tree(folder, max_bytes=ServerSettings().max_source_mb << 20)
    paths = [file.path for file in packed.manifest.files]
    script = spec.job.entry[0]
    if script not in paths:
        raise EntryNotFound(f"there is no script {script!r} in {folder}.{did_you_mean(script, paths)}")
    source, _ = client.sources.send(packed, {"kind": "folder", "path": str(folder)})
    spec.job.source_id = source.id
    return RemoteSweep(client, client.sweeps.create(spec).name)


def locate(words: Sequence[str], folder: str | Path | None) -> tuple[Path, list[str]]:
    """Return the folder to send, and the script's path in it with its arguments."""
    if not words:
        raise UsageError("no script is given", hint='shoal.sweep("train.py", {"lr": [1e-4, 3e-4]}, …)')
    root = Path(folder).resolve() if folder is not None else Path.cwd()
    script = (root / words[0]).resolve()
    if not script.is_relative_to(root):
        if folder is not None:
            raise UsageError(f"{script} is not in {root}")
        root = script.parent
    return root, [script.relative_to(root).as_posix(), *words[1:]]
