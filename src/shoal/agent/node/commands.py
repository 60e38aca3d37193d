"""Commands from the server, received with heartbeat replies: each runs once, in its own thread, so that heartbeats continue."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.agent.link import Link
from shoal.agent.node.job_files import write_for_job
from shoal.agent.node.workdir import WorkDir
from shoal.agent.wire import SAVE_WANTED, Launch
from shoal.core.commands import Command
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.agent.workers.attach import AttachServer

logger = logging.getLogger(__name__)


class Commands:
    """Runs the server's commands: stacks, save and attach."""

    def __init__(self, launch: Launch, work: WorkDir, link: Link, ranks: range, say: Callable[[str], None]):
        """Set up the handlers. `say` adds a line from Shoal itself to the job's output."""
        self._launch, self._work, self._link, self._ranks, self._say = launch, work, link, ranks, say
        self._done: set[str] = set()
        self._known = {
            Command.STACKS: self._stacks,
            Command.SAVE: self._save,
            Command.ATTACH: self._attach,
        }
        self._attached: AttachServer | None = None

    def start_once(self, command: dict[str, Any]) -> None:
        """Start a command unless it was started before; the server repeats it until it has the answer.

        Called from the heartbeat thread only, so `_done` needs no lock.
        """
        command_id, action = str(command.get("id")), self._known.get(command.get("do", ""))
        if action is not None and command_id not in self._done:
            self._done.add(command_id)
            threading.Thread(target=self._do, args=(action, command_id, command), name="command", daemon=True).start()

    def _do(self, action: Callable[[str, dict[str, Any]], None], command_id: str, command: dict[str, Any]) -> None:
        try:
            action(command_id, command)
        except (ShoalError, OSError) as error:
            logger.warning("server command failed: %s", error)

    def _stacks(self, command_id: str, command: dict[str, Any]) -> None:
        from shoal.agent.workers.frames import together
        from shoal.agent.workers.stacks import gather

        found = gather(os.getpid(), self._ranks, self._work.spool("sdk"), self._work.source)
        self._link.another().post("/stacks", {"order": command_id, "ranks": found})
        if why := command.get("why"):  # explains the stall to readers of the job's output
            self._say(f"[shoal] {why}: {together(found)}")

    def _save(self, command_id: str, command: dict[str, Any]) -> None:
        """Write the file that requests a checkpoint; the SDK's first rank polls for it."""
        write_for_job(self._work.spool("sdk") / SAVE_WANTED, command_id)

    def _attach(self, command_id: str, command: dict[str, Any]) -> None:
        """Start an SSH server inside the job and connect it to the gateway, for `training attach`."""
        from shoal.agent.workers.attach import AttachServer

        found = self._link.another().post("/attach", {"order": command_id})
        if self._attached is not None:
            if self._attached.serves(found):  # repeated after a server restart: the tunnel reconnects by itself
                return
            self._attached.close()
        self._attached = AttachServer(self._launch, found, self._work)
