"""Checks whether this machine can join a swarm, made by `shoal swarm join` and `shoal swarm doctor`."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shoal import __version__
from shoal.cli.shared.format import size
from shoal.client.waiting import poll
from shoal.core.errors import MissingExtra, Refused, ShoalError
from shoal.core.swarm import SET_CLOCK, clock_problem, moved, tcp_of, version_problem

if TYPE_CHECKING:
    from shoal.client.swarm_peers import InvitationClient
    from shoal.core.swarm_views import Offer

SPARE_BYTES = 256 << 20
"""Free disk space required in addition to code and state: for logs, environments and files of the script."""
CONNECT_S = 5.0
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_INSTALL = "pip install 'shoal-train[swarm]'"


@dataclass(frozen=True, slots=True)
class Check:
    what: str
    text: str
    fix: str = ""
    is_fatal: bool = False
    kind: type[ShoalError] = Refused

    @property
    def is_fine(self) -> bool:
        return not self.fix


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of this machine."""

    python: str
    packages: dict[str, str | None]
    free_bytes: int
    folder: Path
    skew_s: float
    """Seconds that its clock is ahead of the server's."""
    routes: list[str] = field(default_factory=list)
    """Addresses of the swarm that can be connected to."""
    tried: list[str] = field(default_factory=list)
    congestion: str | None = None

    @property
    def facts(self) -> dict[str, str]:
        """Facts that are shown to the swarm's owner."""
        known = {name: text for name, text in self.packages.items() if text}
        return {"python": self.python, "system": sys.platform, **known}


def examine(invitation: InvitationClient, folder: Path, *, wait_s: float = 0.0) -> tuple[Offer, Machine]:
    """Fetch the swarm's offer and examine this machine. Wait up to `wait_s` for the swarm coordinator to start."""
    began = time.time()
    offer = invitation.offer()
    skew_s = (began + time.time()) / 2 - offer.time
    if wait_s and not offer.addresses:
        offer = poll(invitation.offer, lambda told: bool(told.addresses) or told.status != "running", within_s=wait_s)
    tried = candidates(offer.addresses, invitation.url)
    return offer, Machine(
        python=".".join(map(str, sys.version_info[:3])),
        packages={name: _version(name) for name in ("torch", "hivemind", "numpy")},
        free_bytes=shutil.disk_usage(_existing(folder)).free,
        folder=folder,
        skew_s=skew_s,
        routes=reachable(tried),
        tried=tried,
        congestion=_congestion(),
    )


def checks(offer: Offer, machine: Machine) -> list[Check]:
    """Return all checks, the most important first. Pure."""
    return [
        _status(offer),
        _shoal(offer),
        _torch(machine),
        _hivemind(offer, machine),
        _numpy(machine),
        _clock(machine),
        _disk(offer, machine),
        _route(offer, machine),
        _line(machine),
    ]


def refuse(found: Sequence[Check]) -> None:
    """Raise an error for the first check that makes joining impossible."""
    for check in found:
        if check.is_fatal:
            raise check.kind(check.text, hint=check.fix)


def candidates(addresses: Sequence[str], server: str) -> list[str]:
    """Return the addresses, and the same ports on the host of the server's URL: behind NAT, the server may not know it."""
    host = urlsplit(server).hostname or ""
    others = [moved(address, host) for address in addresses]
    return list(dict.fromkeys([*addresses, *(other for other in others if other)]))


def reachable(addresses: Sequence[str]) -> list[str]:
    """Return the addresses that accept a TCP connection, in the given order."""
    with ThreadPoolExecutor(8, thread_name_prefix="shoal-route") as pool:
        return [address for address, ok in zip(addresses, pool.map(_answers, addresses), strict=True) if ok]


def _answers(address: str) -> bool:
    place = tcp_of(address)
    if place is None:
        return False
    with suppress(OSError):
        socket.create_connection(place, timeout=CONNECT_S).close()
        return True
    return False


def _status(offer: Offer) -> Check:
    if offer.status == "running":
        return Check("swarm", f"'{offer.swarm}' is running")
    return Check(
        "swarm",
        f"Swarm '{offer.swarm}' is stopped. Its owner can resume it.",
        f"shoal swarm resume {offer.swarm}",
        is_fatal=True,
    )


def _shoal(offer: Offer) -> Check:
    wrong = version_problem(offer.swarm, __version__, offer.version)
    if wrong is None:
        return Check("shoal", __version__)
    return Check("shoal", wrong, f"pip install 'shoal-train[swarm]=={offer.version}'", is_fatal=True)


def _torch(machine: Machine) -> Check:
    if machine.packages["torch"]:
        return Check("torch", machine.packages["torch"])
    return Check("torch", "PyTorch is not installed here.", "pip install torch", is_fatal=True, kind=MissingExtra)


def _hivemind(offer: Offer, machine: Machine) -> Check:
    here = machine.packages["hivemind"]
    if here is None:
        return Check("hivemind", "hivemind is not installed here.", _INSTALL, is_fatal=True, kind=MissingExtra)
    if offer.hivemind is None or here == offer.hivemind:
        return Check("hivemind", here)
    text = f"This machine has hivemind {here}; swarm '{offer.swarm}' runs on {offer.hivemind}."
    return Check("hivemind", text, f"pip install hivemind=={offer.hivemind}", is_fatal=True)


def _numpy(machine: Machine) -> Check:
    here = machine.packages["numpy"] or "0"
    if here.split(".")[0].isdigit() and tuple(map(int, here.split(".")[:2])) >= (2, 4):
        text = f"hivemind's 8-bit compression does not work with numpy {here}."
        return Check("numpy", text, "pip install 'numpy>=2.2,<2.4'", is_fatal=True)
    return Check("numpy", here)


def _clock(machine: Machine) -> Check:
    wrong = clock_problem(machine.skew_s)
    if wrong is None:
        return Check("clock", f"{abs(machine.skew_s):.1f} s from the server's")
    return Check("clock", wrong, SET_CLOCK, is_fatal=True)


def _disk(offer: Offer, machine: Machine) -> Check:
    needed = offer.size + 2 * offer.state_size + SPARE_BYTES
    if machine.free_bytes >= needed:
        return Check("disk", f"{size(machine.free_bytes)} free, {size(needed)} needed")
    text = f"The disk of {machine.folder} has only {size(machine.free_bytes)} free; this swarm needs {size(needed)}."
    return Check("disk", text, "shoal swarm join LINK --dir FOLDER_ON_ANOTHER_DISK", is_fatal=True)


def _route(offer: Offer, machine: Machine) -> Check:
    if machine.routes:
        return Check("route", f"to {len(machine.routes)} of the swarm's addresses")
    if not machine.tried:
        text = f"The coordinator of swarm '{offer.swarm}' is not running: it is {offer.keeper}."
        return Check("route", text, f"On the server: shoal swarm inspect {offer.swarm}", is_fatal=True)
    places = ", ".join(dict.fromkeys(f"{p[0]}:{p[1]}" for a in machine.tried if (p := tcp_of(a))))
    text = f"This machine cannot reach any peer of swarm '{offer.swarm}': no answer at {places}."
    return Check("route", text, "Open that port in the server's firewall, then: shoal swarm doctor LINK", is_fatal=True)


def _line(machine: Machine) -> Check:
    if machine.congestion in (None, "bbr"):
        return Check("tcp", machine.congestion or "unknown")
    text = f"{machine.congestion}: slow on connections with packet loss"
    return Check("tcp", text, "sudo sysctl net.ipv4.tcp_congestion_control=bbr")


def _congestion() -> str | None:
    try:
        return _CONGESTION.read_text().strip()
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
