"""The interface between the machine pool and the cluster software that connects its machines to the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shoal.engines.base import Engine, Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinCommand:
    """Command that starts the cluster's daemon on a machine, and the secret that the daemon reads from its token file."""

    argv: list[str]
    token: str


class Cluster(ABC):
    """A cluster with its head on the server's machine. The head outlives the server, which finds it again."""

    @abstractmethod
    def ensure(self, address: str | None) -> None:
        """Start the head unless it runs, and return once machines can join.

        `address` is the server's address for machines; None means the one it had before.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop the head, and with it all agents on all machines."""

    @abstractmethod
    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of what machines must be able to reach; empty before the first start of the head."""

    @abstractmethod
    def join(self, machine: str, slots: int, *, python: str, home: str, address: str) -> JoinCommand:
        """Return the command with which a machine joins. `python` and `home` are paths on that machine, `address` is its own."""

    @abstractmethod
    def open_engine(self, machines: Callable[[], list[Machine]], agent_env: Mapping[str, str]) -> Engine:
        """Return the engine that starts agents on the machines; the cluster decides which of them are up."""
