"""Check of machines, GPUs, data, network and disk before a training starts. All problems are reported at once.

The codes E2, E3 and E4 are those of TopSpin's list of common errors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import Refused, ShoalError
from shoal.train import probe
from shoal.train.hosts import Host

FREE_BYTES = 1 << 30
"""Minimum free bytes on the disk; with less, the first checkpoints may not fit."""
_MANY = 16


class Place(NamedTuple):
    """A machine and the slots to use there: GPU numbers, or any numbers without GPUs."""

    host: Host
    slots: tuple[int, ...] = ()
    """Slots; empty: all that are free."""


class Ready(NamedTuple):
    """A machine that has passed the check."""

    place: Place
    """Place with its slots filled in."""
    address: str
    interface: str | None
    """Network interface for the workers' communication; None: the library chooses."""
    port: int
    """Port that was free at the time of the check."""


@dataclass(slots=True, kw_only=True)
class Needs:
    """Requirements of a training on every machine."""

    workers: int = 1
    """Number of slots, if a place names none."""
    gpus: bool = False
    paths: Sequence[str] = ()
    """Files and folders of data; relative paths start at the working directory."""
    interface: str | None = None
    """Network interface chosen by the user; None: determined automatically."""
    check_gpus: bool = True
    free_bytes: int = FREE_BYTES


def check(places: Sequence[Place], needs: Needs) -> list[Ready]:
    """Check all machines and return them in the order of `places`; raise Refused with all problems."""
    cwd = str(Path.cwd())
    asked = {"cwd": cwd, "paths": list(needs.paths), "gpus": needs.gpus}
    several = len({p.host for p in places}) > 1 and not all(p.host.is_here for p in places)
    found: list[Ready] = []
    problems: list[str] = []
    hints: list[str] = []
    for place, answer in zip(places, _probe(places, asked), strict=True):
        if isinstance(answer, ShoalError):
            problems.append(answer.message)
            hints.append(answer.hint or "")
            continue
        slots, own = _slots(place, needs, answer)
        own += _environment_problems(place, needs, answer, cwd)
        interface, unknown = _interface(place, needs, answer, several=several)
        problems += [f"{place.host}: {p}" for p, _ in own + unknown]
        hints += [h for _, h in own + unknown]
        found.append(Ready(place._replace(slots=slots), place.host.name or "127.0.0.1", interface, answer["port"]))
    if problems:
        raise Refused("; ".join(problems), hint=". ".join(dict.fromkeys(h for h in hints if h)) or None)
    return found


def data_paths(*given: Any) -> list[str]:
    """Return all paths in parameters that may be a path, a list of paths, or empty."""
    found: list[str] = []
    for value in given:
        if isinstance(value, str) and value:
            found.append(value)
        elif isinstance(value, Iterable) and not isinstance(value, str | Mapping):
            found += data_paths(*value)
    return list(dict.fromkeys(found))


def _probe(places: Sequence[Place], asked: dict[str, Any]) -> list[dict[str, Any] | ShoalError]:
    def one(place: Place) -> dict[str, Any] | ShoalError:
        try:
            return place.host.examine(asked)
        except ShoalError as error:
            return error

    with ThreadPoolExecutor(min(_MANY, max(1, len(places)))) as pool:
        return list(pool.map(one, places))


_Problems = list[tuple[str, str]]
"""List of (problem, what to do)."""


def _slots(place: Place, needs: Needs, found: Mapping[str, Any]) -> tuple[tuple[int, ...], _Problems]:
    if not needs.gpus:
        return place.slots or tuple(range(needs.workers)), []
    there = sorted(map(int, found["gpus"]))
    free = probe.free_gpus(found["gpus"])
    wanted = list(place.slots or free)
    usable = there if not needs.check_gpus else free
    unusable = [g for g in wanted if g not in usable]
    if not there:
        return (), [
            ("E2: there is no GPU", "set use_gpu to False to train on the CPU, or name a machine that has GPUs")
        ]
    if unusable:
        why = "in use or missing" if needs.check_gpus else "missing"
        problem = f"E2: GPU {', '.join(map(str, unusable))} {why}; free GPUs: {free or 'none'}"
        return (), [(problem, "choose GPUs that are free")]
    if len(wanted) < needs.workers:
        problem = f"E2: {needs.workers} GPUs are needed, but only {len(wanted)} available"
        return (), [(problem, "request fewer GPUs per training, or wait until more are free")]
    return tuple(wanted), []


def _environment_problems(place: Place, needs: Needs, found: Mapping[str, Any], cwd: str) -> _Problems:
    problems: _Problems = []
    if not found["cwd"]:
        problems.append(
            (f"E3: the working directory {cwd} does not exist", "share it, with NFS or sshfs, at the same path")
        )
    elif found["missing"]:
        missing = ", ".join(found["missing"][:5]) + (" …" if len(found["missing"]) > 5 else "")
        problems.append((f"E3: no data at {missing}", f"make it readable there; relative paths start at {cwd}"))
    if not found["has_shoal"]:
        problems.append((f"{sys.executable} has no shoal", "install it there: pip install 'shoal-train[train]'"))
    if found["free_bytes"] < needs.free_bytes:
        room, need = found["free_bytes"] >> 20, needs.free_bytes >> 20
        problems.append((f"{room} MiB are free on the disk, but {need} are needed", "free some space"))
    return problems


def _interface(place: Place, needs: Needs, found: Mapping[str, Any], *, several: bool) -> tuple[str | None, _Problems]:
    known: Mapping[str, str] = found["interfaces"]
    names = ", ".join(sorted(known)) or "none"
    if needs.interface:
        if needs.interface in known:
            return needs.interface, []
        problem = f"E4: there is no network interface {needs.interface}; there are {names}"
        return None, [(problem, "set net_name to one of them, or to None")]
    if not several:
        return next((n for n, a in known.items() if a.startswith("127.")), None), []
    matches = [n for n, address in known.items() if address == place.host.name]
    if matches:
        return matches[0], []
    outer = [n for n, address in known.items() if not address.startswith("127.")]
    if len(outer) == 1 and not place.host.name.startswith("127."):
        return outer[0], []
    if place.host.is_here and len(outer) <= 1:
        return next(iter([*outer, *known]), None), []
    problem = f"E4: cannot determine the network interface with the address {place.host.name}; there are {names}"
    return None, [(problem, "set net_name, e.g. eth0")]
