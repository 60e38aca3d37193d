"""`shoal.download_checkpoint`: download a job's checkpoint to any machine, with only the job's id and a key."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from shoal.client.client import Client
from shoal.client.config import find_target
from shoal.core.checkpoints import CheckpointView
from shoal.core.errors import NotFound, NotSignedIn
from shoal.core.settings import Layout


def download_checkpoint(
    job_id: str,
    token: str | None = None,
    *,
    url: str | None = None,
    destination: str | Path | None = None,
    checkpoint: str | None = None,
    workspace: str | None = None,
    quiet: bool = False,
) -> Path:
    """Download the newest checkpoint of a job, and return its folder.

    job_id       id or name of the job
    token        API key; default: SHOAL_API_KEY, then the key of `shoal login`
    url          server; default: SHOAL_URL, then that of `shoal login`, then the private server of this machine
    destination  folder to write to; default: one named after the job and the checkpoint, in the current directory. A repeated
                 call downloads only what is missing.
    checkpoint   id or name of another checkpoint than the newest
    workspace    workspace of the job; default: all workspaces you are a member of
    quiet        do not show the progress of a download that takes more than a moment

    Raise a `shoal.core.errors.ShoalError` that says what is wrong: NotFound, NotSignedIn, Unreachable, Corrupt, …

    Example: `model.load_state_dict(torch.load(shoal.download_checkpoint("my-job") / "model.pt"))`
    """
    where, key = _server(url, token)
    with Client(where, key) as client:
        spaces = [workspace] if workspace else _spaces(client, job_id)
    for space in spaces:
        with Client(where, key, space) as client:
            try:
                chosen = _choose(client, job_id, checkpoint)
            except NotFound as error:
                if error.details.get("job") == job_id:
                    raise
                continue
            folder = Path(destination) if destination is not None else Path(_folder_name(chosen))
            with DownloadProgress(_folder_name(chosen), chosen.size, sys.stderr, quiet=quiet) as told:
                return client.checkpoints.fetch(chosen.id, folder, force=True, progress=told.add).path
    raise NotFound(f"There is no job '{job_id}' in any workspace this key can see.", hint="shoal training list")


class DownloadProgress:
    """Progress line of a download, in a terminal, a notebook or a log. `add` may be called from any thread."""

    FIRST_S, EVERY_S = 1.0, 0.5
    EVERY_IN_A_LOG_S = 10.0

    def __init__(
        self, what: str, size: int, to: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ):
        self._what, self._size, self._to, self._clock = what, max(1, size), to, clock
        self._done, self._lock, self._is_open = 0, threading.Lock(), False
        self._next = float("inf") if quiet else clock() + self.FIRST_S
        # A notebook is not a terminal, but redraws a line like one.
        self._redraws = to.isatty() or "IPython" in sys.modules

    def __enter__(self) -> DownloadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            self._write(end=True)

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done += num_bytes
            now = self._clock()
            if now >= self._next:
                self._next = now + (self.EVERY_S if self._redraws else self.EVERY_IN_A_LOG_S)
                self._write()

    def _write(self, *, end: bool = False) -> None:
        part = f"{min(1.0, self._done / self._size):.0%} of {self._size / 1e6:,.1f} MB"
        start, stop = ("\r", "\n" if end else "") if self._redraws else ("", "\n")
        self._to.write(f"{start}Downloading {self._what}: {part}{stop}")
        self._to.flush()
        self._is_open = self._redraws and not end


def _server(url: str | None, token: str | None) -> tuple[str, str]:
    from shoal.client.local import owner_key, running_server

    layout = Layout()
    target = find_target(layout, url=url)
    key = token or target.key
    record = running_server(layout) if target.url is None or key is None else None
    is_own = record is not None and target.url in (None, record.url.rstrip("/"))
    where = target.url or (record.url if record else None)
    if where is None:
        raise NotFound("No server is given, and none runs on this machine.", hint="Pass url=…, or set SHOAL_URL.")
    if key is None and record is not None and is_own and record.private:
        key = owner_key(layout, record)
    if key is None:
        raise NotSignedIn("No key is given.", hint="Pass token=…, or set SHOAL_API_KEY.")
    return where, key


def _spaces(client: Client, job_id: str) -> list[str]:
    """Return the ids of the workspaces to search (two may have the same name), the usual one first."""
    usual = find_target(Layout()).workspace
    found = sorted(client.workspaces.list(), key=lambda w: w.name != usual)
    if not found:
        raise NotFound(f"There is no job '{job_id}' here: this key sees no workspace.")
    return [w.id for w in found]


def _choose(client: Client, job_id: str, wanted: str | None) -> CheckpointView:
    """Return the requested checkpoint, or else the newest.

    If several nodes wrote one, take the first node's: it has the model.
    """
    if wanted is None:
        newest = client.checkpoints.newest(job_id)
        found = [newest[min(newest)]] if newest else []
    else:
        named = [c for c in client.checkpoints.list(job_id) if wanted in (c.id, c.name)]
        found = [c for c in named if not c.damaged and (c.node or 0) == min(n.node or 0 for n in named)]
    if not found:
        what = f"checkpoint '{wanted}'" if wanted else "checkpoint (yet)"
        hint = f"shoal training checkpoints {job_id}"
        raise NotFound(f"Job '{job_id}' has no {what}.", hint=hint, details={"job": job_id})
    return found[-1]


def _folder_name(view: CheckpointView) -> str:
    parts = (view.job or view.job_id, view.name if view.name != "." else None)
    return "-".join(part.replace("/", "-") for part in parts if part)
