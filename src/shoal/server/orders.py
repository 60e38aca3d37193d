"""What is asked of the agents of running attempts until they have answered, and when an attempt last showed progress.

In memory: after a restart of the server nothing is asked any more, and every attempt counts as just heard of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from shoal.core.ids import new_id

_PATIENCE_S = 60.0
"""An agent that has not answered by then is not asked any longer."""


@dataclass(slots=True)
class Order:
    id: str
    attempt_id: str
    do: str
    why: str
    is_stall: bool
    until: float
    is_probe: bool = False
    """Only looked at by the server itself: nobody is told of it."""
    answered: set[int] = field(default_factory=set)
    """Nodes that have."""


class Orders:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._orders: dict[str, Order] = {}
        self._signs: dict[str, float] = {}

    def ask(self, attempt_id: str, do: str, why: str = "", *, is_stall: bool = False, is_probe: bool = False) -> str:
        """Of every node of the attempt, with its next beat; returns the order's id."""
        now = self._clock()
        order = Order(new_id("ord"), attempt_id, do, why, is_stall, now + _PATIENCE_S, is_probe)
        with self._lock:
            self._orders = {key: known for key, known in self._orders.items() if known.until > now}
            self._orders[order.id] = order
        return order.id

    def pending(self, attempt_id: str, node: int) -> list[dict[str, Any]]:
        """As commands of a beat's reply. They are repeated until answered; agents do each once."""
        if not self._orders:
            return []
        now = self._clock()
        with self._lock:
            return [
                {"id": order.id, "do": order.do} | ({"why": order.why} if order.is_stall else {})
                for order in self._orders.values()
                if order.attempt_id == attempt_id and node not in order.answered and order.until > now
            ]

    def answered(self, order_id: str, attempt_id: str, node: int) -> Order | None:
        """The order this node has answered; None if nobody asked the attempt for that, or long ago."""
        with self._lock:
            order = self._orders.get(order_id)
            if order is None or order.attempt_id != attempt_id:
                return None
            order.answered.add(node)
            return order

    def sign(self, attempt_id: str) -> None:
        """A line, a metric or a step has come from it."""
        self._signs[attempt_id] = self._clock()

    def quiet_s(self, attempt_id: str) -> float:
        """Seconds since its last sign of progress, or since it was first asked about."""
        now = self._clock()
        return now - self._signs.setdefault(attempt_id, now)

    def keep_only(self, attempts: Collection[str]) -> None:
        """The others have ended."""
        for attempt_id in [known for known in list(self._signs) if known not in attempts]:
            self._signs.pop(attempt_id, None)
