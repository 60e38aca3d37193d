"""Brings the media a job has logged, and the capsules of its bugs, to the server apart from its numbers: a picture must not
hold up a loss."""

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

from shoal.agent.bugs import capsule_files, wire_body
from shoal.agent.link import Link
from shoal.agent.uploads import commit
from shoal.core.errors import AuthError, NotFound, ShoalError, TimedOut

logger = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
_LINE = re.compile(rb'"k"\s*:\s*"[mb]"')


class Courier:
    """Its thread starts with the first medium or bug; most jobs have none."""

    def __init__(self, folder: Path, link: Link, say: Callable[[str], None], output: Path | None = None):
        """`output` is the job's output directory, where capsules are."""
        self._folder, self._link, self._say, self._output = folder, link, say, output
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, int, dict[str, Any]]] = deque()
        self._busy = False
        self._untold = 0
        """Bugs the server has not heard of."""
        self._leave = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, rank: int, line: int, record: dict[str, Any]) -> None:
        with self._changed:
            if record.get("k") == "b":
                # What there is to say of a failure is short, and matters more than pictures.
                self._waiting.appendleft((rank, line, record))
                self._untold += 1
            else:
                self._waiting.append((rank, line, record))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def told(self, timeout_s: float) -> bool:
        """Wait until the server has heard of every bug; their capsules may still be on the way."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._untold, timeout_s)

    def drained(self, timeout_s: float) -> bool:
        """Wait until all are brought, or the server wants no more of them."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout_s)
        if not done:
            self._leave.set()
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
                self._bring(rank, line, record)
            except (AuthError, NotFound) as error:
                logger.info("no more media are taken: %s", error)
                with self._changed:
                    self._waiting.clear()
                    self._untold = 0
            except Exception as error:
                logger.warning("medium %s: %s", record.get("name"), error)
                self._say(f"[shoal] {record.get('type', 'capsule')} '{record.get('name')}' could not be kept: {error}")

    def _bring(self, rank: int, line: int, record: dict[str, Any]) -> None:
        from shoal.store.pack import pack_files

        if record.get("k") == "b":
            self._bring_bug(rank, line, record)
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

    def _bring_bug(self, rank: int, line: int, record: dict[str, Any]) -> None:
        """First that it happened, then all that was kept of it."""
        from shoal.store.pack import pack_files

        nothing = pack_files({})
        try:
            commit(self._link, "/bugs", wire_body(rank, line, record, None), nothing, self._check)
        finally:
            with self._changed:
                self._untold -= 1
                self._changed.notify_all()
        if self._output is not None:
            packed = pack_files(capsule_files(self._output, record))
            body = wire_body(rank, line, record, packed.manifest.model_dump(mode="json"))
            commit(self._link, "/bugs", body, packed, self._check)

    def _check(self) -> None:
        if self._leave.is_set():
            raise TimedOut("the agent leaves")


def media_file(folder: Path, record: dict[str, Any]) -> Path:
    """The file a record speaks of, if it is a plain one in the spool's own folder: a job must not name what it cannot read."""
    told = PurePosixPath(str(record.get("file")))
    if told.is_absolute() or len(told.parts) != 2 or told.parts[0] != "media" or told.parts[1] in ("..", "."):
        raise ShoalError(f"its file {str(told)[:200]!r} is not in media/")
    for part in (folder / "media", folder / told):
        if os.path.islink(part):  # noqa: PTH114
            raise ShoalError(f"{part.name} is a link")
    status = os.lstat(folder / told)
    if not stat.S_ISREG(status.st_mode):
        raise ShoalError(f"{told.name} is no file")
    if status.st_size > MAX_BYTES:
        raise ShoalError(f"{told.name} is larger than {MAX_BYTES >> 20} MiB")
    return folder / told


def logged_media(folder: Path) -> list[tuple[int, int, dict[str, Any]]]:
    """(rank, line, record) of all media and bugs in spool files, for a salvage: which of them came through it cannot know."""
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
                    if isinstance(record, dict) and record.get("k") in ("m", "b"):
                        found.append((int(rank), number, record))
    return found
