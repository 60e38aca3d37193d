"""The machine pool on the wire: its machines, how they join, their problems, and the network speed between them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from shoal.core.errors import InvalidName, InvalidSpec
from shoal.core.gpu_models import check_labels
from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

OWN_MACHINE = "local"
"""Name of the server's own machine. No other machine may have it."""
JOIN_HEADER = "X-Shoal-Join"
MAX_JOIN_S = 7 * 86_400
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,45}")
_PATH = re.compile(r"[/~][^\0\n\r]{0,4095}")


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError(f"{value!r} is neither a host name nor an address")
    return value


def _user(value: str) -> str:
    if not _USER.fullmatch(value):
        raise ValueError(f"{value!r} is not a user name")
    return value


def _path(value: str) -> str:
    if not _PATH.fullmatch(value):
        raise ValueError(f"{value!r} is not an absolute path (it must begin with / or ~)")
    return value


def _name(value: str) -> str:
    try:
        check_name(value, "name of a machine")
    except InvalidName as error:
        raise ValueError(error.message) from None
    if value == OWN_MACHINE:
        raise ValueError(f"{OWN_MACHINE!r} is the server's own machine")
    return value


_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{4,90}")
Gpu = Annotated[int, Field(ge=0, lt=1_024)] | Annotated[str, Field(pattern=_UUID.pattern)]
Gpus = Annotated[list[Gpu], Field(max_length=1_024)]
MachineName = Annotated[str, AfterValidator(_name)]
FilePath = Annotated[str, AfterValidator(_path)]


class _Share(Schema):
    """The part of a machine that the pool may use; by default all of it."""

    name: MachineName | None = None
    gpus: Gpus | None = None
    """GPUs to use, by number, UUID or the beginning of a UUID. Empty: only the CPU; None: all GPUs, else the CPU."""
    slots: int | None = Field(default=None, ge=1, le=1_024)
    """Number of slots, for a machine without GPUs."""
    labels: Annotated[dict[str, str], Field(max_length=20), AfterValidator(check_labels)] = {}
    """Labels of the machine, such as rack=a1. Jobs can ask for machines with a label."""

    @model_validator(mode="after")
    def _one_of_them(self) -> _Share:
        if self.gpus and self.slots is not None:
            raise ValueError("--gpus and --slots cannot be combined: on a machine with GPUs, each GPU is one slot")
        if self.gpus is not None and len(set(self.gpus)) != len(self.gpus):
            raise ValueError("a GPU is listed twice")
        return self


class PoolAdd(_Share):
    """A machine to add over SSH, with the rights of the server's own user."""

    host: Annotated[str, AfterValidator(_host)]
    user: Annotated[str, AfterValidator(_user)] | None = None
    port: int | None = Field(default=None, ge=1, le=65_535)
    key: FilePath | None = None
    """Path of a private key on the server's machine."""
    python: FilePath | None = None
    """Path of an interpreter on the machine that already has Shoal and the cluster's software; None: one is set up."""


class JoinCommandRequest(_Share):
    """A request for a command with which a machine joins the pool by itself."""

    expires_in_s: int = Field(default=3_600, ge=60, le=MAX_JOIN_S)
    address: Annotated[str, AfterValidator(_host)] | None = None
    """Address of this server as the machine sees it; None: the address that other machines use, or else that of the default
    route."""


class JoinCommand(View):
    """A command with which a machine joins the pool."""

    command: str
    """Command in one line to paste on the machine. It works once."""
    expires_at: Utc


class MachineChange(Schema):
    """A change to a machine of the pool."""

    draining: bool
    """True: running jobs continue and no new ones start on the machine. False: the machine takes new jobs again."""
    devices: list[str] = Field(default=[], max_length=1_024)
    """Only these devices of the machine, by UUID or number of the slot; empty: the whole machine."""


class Problem(View):
    """A problem of a machine."""

    text: str
    fix: str
    """Advice how to solve it, if possible a command."""
    is_fatal: bool = False
    """True if the machine cannot join while it has this problem."""


class Step(View):
    """One step of adding a machine."""

    text: str
    state: Literal["doing", "done", "failed"] = "doing"
    seconds: float | None = None


class PoolMachine(View):
    """A machine of the pool."""

    id: str
    name: str
    via: Literal["ssh", "join", "server"]
    """Way by which it was added; 'server' for the server's own machine."""
    user: str | None
    host: str
    port: int | None
    address: str | None
    """Address at which other machines reach it."""
    state: Literal["adding", "up", "draining", "lost", "failed"]
    kind: str
    """Kind of slots: cpu, cuda, rocm or xpu."""
    slots: int
    slots_free: int
    gpus: list[int | str] | None = None
    """GPUs that the pool may use, as they were given; None: all."""
    python: str | None = None
    """Interpreter that runs jobs there."""
    facts: dict[str, Any] = {}
    steps: list[Step] = []
    problems: list[Problem] = []
    created_at: Utc | None = None
    """Time it was added; None for the server's own machine."""


class PairSpeed(View):
    """Measured network speed between two machines, with the same connections that workers use."""

    one: str
    other: str
    latency_ms: float
    """Latency of the smallest all-reduce, in milliseconds."""
    mb_s: float
    """Throughput of a large all-reduce, in MB/s."""


class PoolCheck(View):
    """Results of a check of the pool."""

    machines: list[PoolMachine]
    pairs: list[PairSpeed] = []
    slow: list[str] = []
    """Descriptions of unusually slow connections."""
    skipped: str | None = None
    """Reason why speeds were not measured."""


class JoinKnock(Schema):
    """A joining machine's request to test its connections."""

    port: int | None = Field(default=None, ge=1, le=65_535)
    """A port the machine has opened for a moment, which the server tries to reach; None: only return the addresses the machine
    must reach."""


class JoinAddresses(View):
    """Addresses a joining machine must be able to reach."""

    reach: list[tuple[str, int]]
    """Host and port of each address."""


class JoinFacts(Schema):
    """Facts that a joining machine has collected about itself."""

    facts: dict[str, Any] = Field(max_length=100)
    time: float


class JoinPlan(View):
    """Instructions for a joining machine. They contain the cluster's token, so only the holder of the join token gets them."""

    name: str
    home: str
    argv: list[str]
    """Command that starts the cluster's daemon there; `{python}` stands for the interpreter of the runtime."""
    token: str


class JoinDone(Schema):
    """Result of joining."""

    ok: bool
    python: str = Field(default="", max_length=4096)
    error: str = Field(default="", max_length=8_000)


def parse_target(text: str) -> tuple[str | None, str]:
    """Split `user@host` into (user, host); the user is None if the text has none."""
    user, _, host = text.rpartition("@")
    return user or None, host


def parse_gpus(text: str) -> list[int | str]:
    """Return the GPUs of a text such as `0,1,2` or `GPU-5a3f8c1e,MIG-77ab0d2c`; no GPUs for `none`."""
    if text.strip() == "none":
        return []
    found = [int(part) if part.isdigit() else part for part in (part.strip() for part in text.split(","))]
    if not all(isinstance(part, int) or _UUID.fullmatch(part) for part in found):
        raise InvalidSpec(f"{text!r} is not a list of GPUs.", hint="--gpus 0,1,2,3, --gpus GPU-5a3f8c1e or --gpus none")
    return found


def parse_servers(text: str) -> list[tuple[str, list[int | str] | None]]:
    """Return (host, GPUs) for each line of a servers file, `host` or `host:0,1,2`.

    Empty lines and # comments are ignored.
    """
    found: list[tuple[str, list[int | str] | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 1:
            raise InvalidSpec(f"Line {number} of the servers file has more than one word.", hint="10.0.0.5:0,1,2")
        host, _, gpus = words[0].partition(":") if words[0].count(":") <= 1 else (words[0], "", "")
        found.append((host, parse_gpus(gpus) if gpus else None))
    return found
