"""What the server asks of an agent between beats: each command is done once, in a thread of its own, so that beats go on."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.agent.link import Link
from shoal.agent.node import WorkDir
from shoal.agent.wire import SAVE_WANTED, Launch
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.agent.attach import WayIn

logger = logging.getLogger(__name__)


class Commands:
    def __init__(self, launch: Launch, work: WorkDir, link: Link, ranks: range, say: Callable[[str], None]):
        """`say` adds a line of Shoal's own to the job's output."""
        self._launch, self._work, self._link, self._ranks, self._say = launch, work, link, ranks, say
        self._done: set[str] = set()
        self._known = {"stacks": self._stacks, "save": self._save, "attach": self._attach}
        self._way_in: WayIn | None = None

    def take(self, command: dict[str, Any]) -> None:
        """From the thread that beats: the same one comes again until the server has its answer."""
        order, action = str(command.get("id")), self._known.get(str(command.get("do")))
        if action is not None and order not in self._done:
            self._done.add(order)
            threading.Thread(target=self._do, args=(action, order, command), name="command", daemon=True).start()

    def _do(self, action: Callable[[str, dict[str, Any]], None], order: str, command: dict[str, Any]) -> None:
        try:
            action(order, command)
        except (ShoalError, OSError) as error:
            logger.warning("a command of the server's failed: %s", error)

    def _stacks(self, order: str, command: dict[str, Any]) -> None:
        from shoal.agent.frames import together
        from shoal.agent.stacks import gather

        found = gather(os.getpid(), self._ranks, self._work.spool("sdk"), self._work.source)
        self._link.another().post("/stacks", {"order": order, "ranks": found})
        if why := command.get("why"):  # for whoever follows the output and wonders
            self._say(f"[shoal] {why}: {together(found)}")

    def _save(self, order: str, command: dict[str, Any]) -> None:
        """For the SDK, whose first rank looks for it once in a while."""
        (self._work.spool("sdk") / SAVE_WANTED).write_text(order)

    def _attach(self, order: str, command: dict[str, Any]) -> None:
        """Somebody wants a shell in here."""
        from shoal.agent.attach import WayIn

        found = self._link.another().post("/attach", {"order": order})
        if self._way_in is not None:
            if self._way_in.serves(
                found
            ):  # asked again after a restart of the server, whose connection comes back by itself
                return
            self._way_in.close()
        self._way_in = WayIn(self._launch, found, self._work)
