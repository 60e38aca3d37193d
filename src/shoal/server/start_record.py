"""Record of the server in its data directory: its process and current step while it starts, its URL once it is ready."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from shoal.core.boot import boot_id
from shoal.core.directory_identity import place
from shoal.core.instance import Instance, claim
from shoal.core.settings import Layout

logger = logging.getLogger(__name__)


class StartRecord:
    """Writer of the server's record, for commands that wait for the server."""

    def __init__(self, layout: Layout, instance: Instance):
        self.instance, self._layout = instance, layout
        me = psutil.Process()
        self._who: dict[str, Any] = {
            "pid": me.pid,
            "create_time": me.create_time(),
            "boot_id": boot_id(),
            "instance": instance.id,
            "place": place(layout.server_dir),
        }

    def doing(self, text: str) -> None:
        logger.info("starting: %s", text)
        _replace(self._layout.starting_file, {**self._who, "doing": text})

    def ready(self, url: str, *, agents: str, public: str) -> None:
        """Write the URLs of the ready server: for commands on this machine, for agents on it, and for people elsewhere."""
        more = {name: other for name, other in (("agent_url", agents), ("public_url", public)) if other != url}
        _replace(self._layout.server_file, {**self._who, "url": url, **more})
        self._layout.starting_file.unlink(missing_ok=True)


@contextmanager
def announced(layout: Layout, *, take_over: bool = False) -> Iterator[StartRecord]:
    """Yield the writer of the record; call it while holding the server lock.

    Records of an earlier server or of a copy are removed.
    """
    layout.server_file.unlink(missing_ok=True)
    instance = claim(layout, take_over=take_over)
    if instance.copy_of:
        logger.warning(
            "this data directory is a copy of instance %s; from now on it is %s", instance.copy_of, instance.id
        )
        # On the original's port, its agents and browsers would connect to this server instead.
        for name in ("last_port", "last_local_port"):
            (layout.server_dir / name).unlink(missing_ok=True)
    try:
        yield StartRecord(layout, instance)
    finally:
        layout.server_file.unlink(missing_ok=True)
        layout.starting_file.unlink(missing_ok=True)


def _replace(path: Path, body: dict[str, Any]) -> None:
    aside = path.with_suffix(".tmp")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(json.dumps(body))
    aside.replace(path)
