"""The pool on the wire: machines that have joined, how each is joined, what is wrong with it, and how fast they reach each other."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from shoal.core.errors import InvalidName, InvalidSpec
from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

OWN_MACHINE = "local"
"""What the server's own machine is called; no other may be."""
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
        raise ValueError(f"{value!r} is not a whole path (one that begins with / or ~)")
    return value


def _name(value: str) -> str:
    try:
        check_name(value, "name of a machine")
    except InvalidName as error:
        raise ValueError(error.message) from None
    if value == OWN_MACHINE:
        raise ValueError(f"{OWN_MACHINE!r} is the server's own machine")
    return value


Gpus = Annotated[list[Annotated[int, Field(ge=0, lt=1_024)]], Field(min_length=1, max_length=1_024)]
MachineName = Annotated[str, AfterValidator(_name)]
FilePath = Annotated[str, AfterValidator(_path)]


class _Share(Schema):
    """What of a machine the pool may use; all of it unless said."""

    name: MachineName | None = None
    gpus: Gpus | None = None
    """Which of its GPUs."""
    slots: int | None = Field(default=None, ge=1, le=1_024)
    """How many slots, where it has no GPUs."""

    @model_validator(mode="after")
    def _one_of_them(self) -> _Share:
        if self.gpus is not None and self.slots is not None:
            raise ValueError("--gpus and --slots are at odds: a slot is a GPU where there are GPUs")
        if self.gpus is not None and len(set(self.gpus)) != len(self.gpus):
            raise ValueError("a GPU is named twice")
        return self


class PoolAdd(_Share):
    """A machine to reach by SSH, as the server's own user would."""

    host: Annotated[str, AfterValidator(_host)]
    user: Annotated[str, AfterValidator(_user)] | None = None
    port: int | None = Field(default=None, ge=1, le=65_535)
    key: FilePath | None = None
    """A private key on the server's machine."""
    python: FilePath | None = None
    """An interpreter on the machine that has Shoal and Ray already; else one is set up."""


class JoinAsk(_Share):
    """A machine that will come by itself."""

    expires_in_s: int = Field(default=3_600, ge=60, le=MAX_JOIN_S)
    address: Annotated[str, AfterValidator(_host)] | None = None
    """Of this server, as the machine sees it; by default the one other machines know, or that of the way out."""


class JoinCommand(View):
    command: str
    """One line to paste on the machine. It works once."""
    expires_at: Utc


class MachineChange(Schema):
    draining: bool
    """What runs there goes on; nothing new starts."""


class Problem(View):
    text: str
    fix: str
    """What to do about it, best a command."""
    is_fatal: bool = False
    """The machine cannot join with it."""


class Step(View):
    """One thing done to bring a machine in."""

    text: str
    state: Literal["doing", "done", "failed"] = "doing"
    seconds: float | None = None


class PoolMachine(View):
    id: str
    name: str
    via: Literal["ssh", "join", "server"]
    """How it came; 'server' for the server's own machine."""
    user: str | None
    host: str
    port: int | None
    address: str | None
    """Where other machines reach it."""
    state: Literal["adding", "up", "draining", "lost", "failed"]
    kind: str
    """cpu, cuda, rocm or xpu."""
    slots: int
    slots_free: int
    gpus: list[int] | None = None
    python: str | None = None
    """The interpreter jobs run on there."""
    facts: dict[str, Any] = {}
    steps: list[Step] = []
    problems: list[Problem] = []
    created_at: Utc | None = None
    """When it was added; None for the server's own machine."""


class PairSpeed(View):
    """How two machines reach each other, as their workers would."""

    one: str
    other: str
    latency_ms: float
    """Of the smallest all-reduce."""
    mb_s: float
    """Of a large one."""


class PoolCheck(View):
    machines: list[PoolMachine]
    pairs: list[PairSpeed] = []
    slow: list[str] = []
    """What stands out, in words."""
    skipped: str | None = None
    """Why speeds were not measured."""


class JoinKnock(Schema):
    port: int | None = Field(default=None, ge=1, le=65_535)
    """A port that is open for a moment, to be tried; None only asks for the ways in."""


class JoinWays(View):
    reach: list[tuple[str, int]]
    """Where the machine must get through to."""


class JoinFacts(Schema):
    """What a machine that comes by itself has found out about itself."""

    facts: dict[str, Any] = Field(max_length=100)
    time: float


class JoinPlan(View):
    """What it is to do then. Holds the cluster's token: only whoever holds the join token gets it."""

    name: str
    home: str
    argv: list[str]
    """Starts its Ray node; `{python}` stands for the runtime's interpreter."""
    token: str


class JoinDone(Schema):
    ok: bool
    python: str = Field(default="", max_length=4096)
    error: str = Field(default="", max_length=8_000)


def parse_target(text: str) -> tuple[str | None, str]:
    """`user@host` → (user, host)."""
    user, _, host = text.rpartition("@")
    return user or None, host


def parse_gpus(text: str) -> list[int]:
    """`0,1,2`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidSpec(f"{text!r} is no list of GPUs.", hint="--gpus 0,1,2,3") from None


def parse_servers(text: str) -> list[tuple[str, list[int] | None]]:
    """The lines of a servers file, `host` or `host:0,1,2`, as (host, GPUs). Empty lines and # comments are passed over."""
    found: list[tuple[str, list[int] | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 1:
            raise InvalidSpec(f"Line {number} of the servers file holds more than one word.", hint="10.0.0.5:0,1,2")
        host, _, gpus = words[0].partition(":") if words[0].count(":") <= 1 else (words[0], "", "")
        found.append((host, parse_gpus(gpus) if gpus else None))
    return found
