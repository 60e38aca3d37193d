"""Uploads the media and bug capsules of a job in a thread of their own, so that a picture does not delay metrics.

Why this is safe: `_changed` guards the queue, `_busy`, `_unreported` and the start of the thread; uploads run without it, so
`add` never waits for the network. `_busy` is set in the same step in which a record leaves the queue, so `drained` never sees
an empty queue while an upload runs. One thread uploads, one record at a time. A crash loses nothing: the records are in the SDK's spool,
from which recovery uploads all of them again, and the server knows each by its rank and line.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from shoal.agent.data.bug_capsules import capsule_files, wire_body
from shoal.agent.data.uploads import commit
from shoal.agent.link import Link
from shoal.core.errors import AuthError, NotFound, ShoalError, TimedOut
from shoal.core.records import Kind, kind_pattern

logger = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
_KINDS = (Kind.MEDIA, Kind.BUG)
_LINE = re.compile(b"|".join(map(kind_pattern, _KINDS)))


class Courier:
    """Uploads media and bugs one after another. The thread starts with the first of them, because most jobs have none."""

    def __init__(self, folder: Path, link: Link, say: Callable[[str], None], output: Path | None = None):
        """Set up without a thread. `output` is the job's output directory, which contains the capsules."""
        self._folder, self._link, self._say, self._output = folder, link, say, output
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, int, dict[str, Any]]] = deque()
        self._busy = False
        self._unreported = 0
        """Number of bugs that the server does not know of yet."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, rank: int, line: int, record: dict[str, Any]) -> None:
        """Queue the upload of a record's file; bugs come before media."""
        with self._changed:
            if record.get("k") == Kind.BUG:
                # The report of a failure is short and more important than pictures.
                self._waiting.appendleft((rank, line, record))
                self._unreported += 1
            else:
                self._waiting.append((rank, line, record))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def bugs_reported(self, timeout_s: float) -> bool:
        """Wait until the server knows of every bug; the capsules may still be uploading."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unreported, timeout_s)

    def drained(self, timeout_s: float) -> bool:
        """Wait until everything is uploaded, or the server accepts no more; after the timeout stop and return False."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)
        if not done:
            self._stopping.set()
        return done

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._waiting))
                rank, line, record = self._waiting.popleft()
                self._busy = True
            try:
                self._upload(rank, line, record)
            except (AuthError, NotFound) as error:
                logger.info("the server accepts no more media: %s", error)
                with self._changed:
                    self._waiting.clear()
                    self._unreported = 0
            except Exception as error:
                logger.warning("medium %s: %s", record.get("name"), error)
                self._say(
                    f"[shoal] {record.get('type', 'capsule')} '{record.get('name')}' could not be uploaded: {error}"
                )

    def _upload(self, rank: int, line: int, record: dict[str, Any]) -> None:
        from shoal.store.pack import pack_files

        if record.get("k") == Kind.BUG:
            self._upload_bug(rank, line, record)
            return
        path = media_file(self._folder, record)
        packed = pack_files({path.name: path})
        body = {
            "rank": rank,
            "n": line,
            "t": record.get("t"),
            "step": record.get("i"),
            "name": record.get("name"),
            "type": record.get("type"),
            "mime": record.get("mime") or "application/octet-stream",
            "manifest": packed.manifest.model_dump(mode="json"),
        }
        commit(self._link, "/media", body, packed, self._check)

    def _upload_bug(self, rank: int, line: int, record: dict[str, Any]) -> None:
        """Report the bug first, then upload its capsule."""
        from shoal.store.pack import pack_files

        nothing = pack_files({})
        try:
            commit(self._link, "/bugs", wire_body(rank, line, record, None), nothing, self._check)
        finally:
            with self._changed:
                self._unreported -= 1
                self._changed.notify_all()
        if self._output is not None:
            packed = pack_files(capsule_files(self._output, record))
            body = wire_body(rank, line, record, packed.manifest.model_dump(mode="json"))
            commit(self._link, "/bugs", body, packed, self._check)

    def _check(self) -> None:
        if self._stopping.is_set():
            raise TimedOut("the agent is shutting down")


def media_file(folder: Path, record: dict[str, Any]) -> Path:
    """Return the file that a record names, if it is a regular file in the spool's media folder.

    Anything else raises `ShoalError`: the agent may be able to read files that the job must not.
    """
    named = PurePosixPath(str(record.get("file")))
    if named.is_absolute() or len(named.parts) != 2 or named.parts[0] != "media" or named.parts[1] in ("..", "."):
        raise ShoalError(f"its file {str(named)[:200]!r} is not in media/")
    for part in (folder / "media", folder / named):
        if os.path.islink(part):  # noqa: PTH114
            raise ShoalError(f"{part.name} is a link")
    status = os.lstat(folder / named)
    if not stat.S_ISREG(status.st_mode):
        raise ShoalError(f"{named.name} is not a regular file")
    if status.st_size > MAX_BYTES:
        raise ShoalError(f"{named.name} is larger than {MAX_BYTES >> 20} MiB")
    return folder / named


def logged_media(folder: Path) -> list[tuple[int, int, dict[str, Any]]]:
    """Return (rank, line, record) of all media and bugs in the SDK's spool files.

    Recovery uploads them all, because it cannot know which of them the dead agent had uploaded.
    """
    import json

    found = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        rank = path.stem.removeprefix("rank-")
        if not rank.isdigit() or path.is_symlink():
            continue
        with path.open("rb") as file:
            for number, line in enumerate(file):
                if _LINE.search(line) and line.endswith(b"\n"):
                    try:
                        record = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(record, dict) and record.get("k") in _KINDS:
                        found.append((int(rank), number, record))
    return found
