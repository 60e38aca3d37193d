"""A sweep of a script on a server, as Python holds it."""

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
    """Asks the server anew each time. It goes on there whatever becomes of this process; close it, or use `with`."""

    def __init__(self, client: Client, name: str):
        self.name = name
        self._client = client

    @property
    def view(self) -> SweepView:
        """All about it: state, counts, time left, which parameters matter."""
        return self._client.sweeps.get(self.name)

    @property
    def trials(self) -> list[TrialView]:
        """In the order they were begun."""
        return list(self._client.sweeps.all_trials(self.name))

    @property
    def best(self) -> TrialView | None:
        """So far."""
        return self.view.best

    def wait(self, timeout_s: float | None = None) -> RemoteSweep:
        """Until it has ended; TimedOut if it has not by then, JobFailed if it failed."""
        view = self._client.sweeps.wait(self.name, timeout_s=timeout_s)
        if view.status is SweepState.FAILED:
            raise JobFailed(f"Sweep '{self.name}' failed: {view.reason}", hint=f"shoal sweep trials {self.name}")
        return self

    def stop(self) -> None:
        """No further trials; those that run are stopped as jobs are."""
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
    """Send the folder's code, then the sweep of its script."""
    packed = pack_tree(folder, max_bytes=ServerSettings().max_source_mb << 20)
    paths = [file.path for file in packed.manifest.files]
    script = spec.job.entry[0]
    if script not in paths:
        raise EntryNotFound(f"there is no script {script!r} in {folder}.{did_you_mean(script, paths)}")
    source, _ = client.sources.send(packed, {"kind": "folder", "path": str(folder)})
    spec.job.source_id = source.id
    return RemoteSweep(client, client.sweeps.create(spec).name)


def locate(words: Sequence[str], folder: str | Path | None) -> tuple[Path, list[str]]:
    """The folder to send, and the script as it is called in there, with its arguments."""
    if not words:
        raise UsageError("say which script to run", hint='shoal.sweep("train.py", {"lr": [1e-4, 3e-4]}, …)')
    root = Path(folder).resolve() if folder is not None else Path.cwd()
    script = (root / words[0]).resolve()
    if not script.is_relative_to(root):
        if folder is not None:
            raise UsageError(f"{script} is not in {root}")
        root = script.parent
    return root, [script.relative_to(root).as_posix(), *words[1:]]
