"""One hand on each machine that is up, and someone listening to it. A machine counts as up once its hand has spoken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from shoal.engines.ray.cluster import Cluster

logger = logging.getLogger(__name__)

_FIRST_WORD_S = 60.0
_ANSWER_S = 5.0
"""One whose process is gone is refused at once; the others may be busy."""


class Hands:
    def __init__(
        self,
        cluster: Cluster,
        on_live: Callable[[str], None],
        on_ended: Callable[[str], None],
        on_machines: Callable[[list[str]], None],
    ):
        """The first two are called with the name of a process, as often as it is heard of; the last before what ran there has ended."""
        self._cluster, self._on_live, self._on_ended, self._on_machines = cluster, on_live, on_ended, on_machines
        self._lock = threading.Condition()
        self._reached: set[str] = set()
        """Nodes somebody listens to, or has given up."""
        self._silent: set[str] = set()
        """Those of them that have not spoken yet."""
        self._hands: dict[str, tuple[str, Any]] = {}
        """Of each node whose hand has spoken: the machine's name, and the hand."""
        self._names: dict[str, set[str]] = {}
        """What runs there, as far as we know."""

    def reach_out(self) -> None:
        """Listen to nodes that are new."""
        nodes = self._cluster.nodes()
        with self._lock:
            fresh = set(nodes) - self._reached
            self._reached = set(nodes)
            self._silent |= fresh
        for node_id in fresh:
            threading.Thread(target=self._listen, args=(node_id, nodes[node_id]), daemon=True).start()

    def wait_for_first_words(self, within_s: float) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._silent, within_s)

    def tell_machines(self) -> None:
        with self._lock:  # so that what is told last is also what is newest
            self._on_machines(sorted({machine for machine, _ in self._hands.values()}))

    def on(self, machine: str, *, to_start: str | None = None) -> Any:
        """The hand there. What it is to start has ended if it does."""
        with self._lock:
            nodes = [node_id for node_id, (name, _) in self._hands.items() if name == machine]
            if not nodes:
                raise LookupError(f"machine '{machine}' is not there now")
            if to_start is not None:
                self._names[nodes[-1]].add(to_start)
            return self._hands[nodes[-1]][1]

    def _listen(self, node_id: str, machine: str) -> None:
        hand = self._cluster.hand(node_id)
        try:
            news = self._cluster.call(hand.news, -1, within_s=_FIRST_WORD_S)
            while True:
                self._hear(node_id, machine, hand, news)
                try:
                    news = self._cluster.call(hand.news, news["version"], within_s=None)
                except Exception as error:
                    # A broken connection alone says little: it is asked once more.
                    logger.info("the hand on %s: %s", machine, type(error).__name__)
                    news = self._cluster.call(hand.news, -1, within_s=_ANSWER_S)
        except Exception as error:
            logger.warning("the hand on %s is gone: %s", machine, type(error).__name__)
        self._lose(node_id, hand)

    def _hear(self, node_id: str, machine: str, hand: Any, news: dict[str, Any]) -> None:
        with self._lock:
            self._hands[node_id] = (machine, hand)
            self._names.setdefault(node_id, set()).update(news["live"])
            self._names[node_id] -= set(news["ended"])
            self._speaks(node_id)
        for name in news["live"]:
            self._on_live(name)
        for name in news["ended"]:
            self._on_ended(name)

    def _lose(self, node_id: str, hand: Any) -> None:
        with self._lock:
            self._hands.pop(node_id, None)
            names = self._names.pop(node_id, set())
            self._speaks(node_id)
        self.tell_machines()
        for name in names:
            self._on_ended(name)
        self._cluster.drop(hand)

    def _speaks(self, node_id: str) -> None:
        self._silent.discard(node_id)
        self._lock.notify_all()
