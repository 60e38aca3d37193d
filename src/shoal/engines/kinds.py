"""Kinds of engines, found by entry point `shoal.engines`: all that the server and the command line know of an engine.

A package adds a kind with a subclass of one of the three classes below and an entry point whose name is the kind's name:

    [project.entry-points."shoal.engines"]
    acme = "acme_shoal:AcmeKind"

Modules of kinds are imported at every start of the server, so they import their engine only when it is opened.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from shoal.core.errors import NotFound, Refused
from shoal.core.names import did_you_mean
from shoal.core.schema import Schema
from shoal.core.settings import Layout, ServerSettings
from shoal.engines.base import Engine
from shoal.engines.cluster import Cluster

logger = logging.getLogger(__name__)
GROUP = "shoal.engines"
_OURS = ("shoal-train", "shoal")
"""Name of our distribution, and the one it had before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHost:
    """The server as an engine sees it when it is opened."""

    layout: Layout
    settings: ServerSettings
    url_for: Callable[[str], str] | None = None
    """Returns the URL at which a machine with a given address reaches this server."""
    agent_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that every agent needs in its environment."""


class NoOptions(Schema):
    """Options of an engine that has none."""


class EngineKind(ABC):
    """One kind of engine."""

    name: ClassVar[str]
    """Name of the kind, the same as that of its entry point."""
    title: ClassVar[str]
    """Name of the kind in messages to people."""
    job_options: ClassVar[frozenset[str]] = frozenset()
    """Names of options that single jobs may give (`--engine-option NAME=VALUE`); the engine finds them in `Gang.options`."""


class OwnMachineKind(EngineKind):
    """Kind of the engine for the server's own machine; opened once, at every start of the server."""

    @abstractmethod
    def open(self, host: EngineHost) -> Engine: ...


class PoolKind(EngineKind):
    """Kind of the engine for machines that are added with `shoal pool add`; its cluster connects them to the server."""

    extras: ClassVar[tuple[str, ...]] = ()
    """Extras of the package `shoal` that every machine of the pool needs."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that an interpreter given with `--python` must have in the server's version, besides `shoal`."""
    folder: ClassVar[str]
    """Directory of the machine's daemon below Shoal's directory there: `token`, `node.json` (with its pid) and `node.log`."""
    programs: ClassVar[tuple[str, ...]]
    """Modules that the daemon may run as, now or in earlier versions; they tell its pid from that of another process."""

    @abstractmethod
    def open_cluster(self, layout: Layout) -> Cluster:
        """Return the cluster of this server without starting it."""

    def daemon(self) -> dict[str, Any]:
        """Return the instructions that a machine needs to find the daemon there."""
        return {"folder": self.folder, "programs": list(self.programs), "title": self.title}


class AddedKind(EngineKind):
    """Kind of an engine that an admin adds with `shoal engine add`; its options are stored in the database."""

    options: ClassVar[type[Schema]] = NoOptions
    """Options of `shoal engine add`. The docstring of a field is the option's help."""
    flags: ClassVar[Mapping[str, str]] = {}
    """Field → name of its option on the command line, if that is another."""
    columns: ClassVar[tuple[str, ...]] = ()
    """Fields that `shoal engine list` shows."""
    examples: ClassVar[str] = ""
    """Commands for the help of `shoal engine add`, one per line."""

    def check_options(self, options: Any) -> None:
        """Raise an error for options that do not fit together, before the engine is opened."""
        return

    @abstractmethod
    def open(self, name: str, options: Any, host: EngineHost) -> Engine:
        """Open an engine with checked options. Must not wait for the cluster; `Engine.prepare` does that."""


K = TypeVar("K", bound=EngineKind)


@cache
def kinds() -> dict[str, EngineKind]:
    """Return the installed kinds by name, Shoal's own first. A package that cannot be loaded is logged and left out."""
    found: dict[str, EngineKind] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (not _is_ours(e), e.name)):
        if entry.name in found:
            if not _is_ours(entry):  # an editable installation may list ours twice
                logger.error("engine %s of %s is ignored: the name is taken", entry.name, _package(entry))
            continue
        try:
            kind = entry.load()()
            if not isinstance(kind, EngineKind) or kind.name != entry.name:
                raise TypeError(f"{entry.value} is not an EngineKind with the name '{entry.name}'")
            found[entry.name] = kind
        except Exception:
            if _is_ours(entry):
                raise
            logger.exception("engine %s of %s cannot be loaded", entry.name, _package(entry))
    if not any(isinstance(kind, OwnMachineKind) for kind in found.values()):
        raise Refused(
            "No engine for the server's own machine is registered: the installation of the package 'shoal-train' is older than "
            "its code.",
            hint="pip install --no-deps -e . in Shoal's source directory, or pip install --force-reinstall shoal-train",
        )
    return found


def own_machine_kind() -> OwnMachineKind:
    """Return the kind of the engine for the server's own machine."""
    return _first([kind for kind in kinds().values() if isinstance(kind, OwnMachineKind)], OwnMachineKind.__name__)


def pool_kind() -> PoolKind:
    """Return the kind of the engine for machines of the pool."""
    return _first([kind for kind in kinds().values() if isinstance(kind, PoolKind)], PoolKind.__name__)


def added_kinds() -> dict[str, AddedKind]:
    """Return the kinds that an admin can add, by name."""
    return {name: kind for name, kind in kinds().items() if isinstance(kind, AddedKind)}


def added_kind(name: str) -> AddedKind:
    """Return a kind that an admin can add, or raise `NotFound` with the names of all."""
    known = added_kinds()
    if name not in known:
        raise NotFound(
            f"No engine of kind '{name}' is installed on the server.{did_you_mean(name, known)}",
            hint=f"Installed: {', '.join(known) or 'none'}. Install its package beside Shoal, then restart the server.",
        )
    return known[name]


def reserved_names() -> frozenset[str]:
    """Return the names that only built-in engines have."""
    return frozenset(name for name, kind in kinds().items() if not isinstance(kind, AddedKind))


def _first(found: list[K], wanted: str) -> K:
    if not found:
        raise Refused(f"No {wanted} is installed.", hint="pip install --force-reinstall shoal-train")
    return found[0]


def _is_ours(entry: EntryPoint) -> bool:
    return _package(entry) in _OURS


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "?"
