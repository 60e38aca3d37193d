"""Engines that an admin adds to a server: Slurm clusters, and how to use them."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from shoal.core.names import check_name
from shoal.core.schema import Schema, Utc, View

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@/-]*")
_LOGIN = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9_.:-]*")
_OURS = frozenset(
    "array chdir comment dependency error gpus-per-task cpus-per-task input job-name no-requeue ntasks nodes open-mode output "
    "parsable requeue test-only wait wrap".split()
)
"""Options of sbatch that Shoal sets by itself."""
RESERVED_NAMES = frozenset({"local", "ray"})


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"{text!r} is not a name Slurm knows")
    return text


SlurmName = Annotated[str, Field(max_length=200), AfterValidator(_word)]


class SlurmOptions(Schema):
    """How to use a Slurm cluster."""

    partition: SlurmName | None = None
    """Partition to submit to; the cluster's default one if not given."""
    account: SlurmName | None = None
    qos: SlurmName | None = None
    extra_args: list[str] = Field(default=[], max_length=50)
    """For sbatch, as they are: `--mem-per-cpu=4G`, `--time=8:00:00`."""
    login: str | None = Field(default=None, max_length=300)
    """user@host of a login node to run Slurm's programs on, by SSH; None if they are on the server's machine."""
    key: str | None = Field(default=None, max_length=1000)
    """A private key on the server's machine to sign in there with; None for what its user's SSH has."""
    home: str | None = Field(default=None, max_length=1000)
    """A directory on the cluster's shared file system; None for one in the server's data directory."""
    python: str | None = Field(default=None, max_length=1000)
    """The interpreter with Shoal in it, as compute nodes see it; None for the server's own."""
    url: str | None = Field(default=None, max_length=1000)
    """This server, as compute nodes see it."""
    cpus_per_slot: int = Field(default=2, ge=1, le=1024)
    """On nodes without GPUs."""
    gpus: Literal["cuda", "rocm", "xpu"] = "cuda"
    """What its GPUs are."""

    @field_validator("extra_args")
    @classmethod
    def _extra(cls, value: list[str]) -> list[str]:
        for arg in value:
            name = arg.partition("=")[0].removeprefix("--")
            if not arg.startswith("--") or not arg.isprintable():
                raise ValueError(f"{arg!r} is not a long option of sbatch, such as --mem-per-cpu=4G")
            if name in _OURS:
                raise ValueError(f"--{name} is set by Shoal and cannot be given")
        return value

    @field_validator("login")
    @classmethod
    def _login(cls, value: str | None) -> str | None:
        if value is not None and not _LOGIN.fullmatch(value):
            raise ValueError(f"{value!r} is not user@host")
        return value

    @field_validator("home", "python", "key")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and (not value.startswith("/") or not value.isprintable()):
            raise ValueError(f"{value!r} is not an absolute path")
        return value

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[A-Za-z0-9.\[\]:_-]+(/[!-~]*)?", value):
            raise ValueError(f"{value!r} is not the URL of a server")
        return value


class EngineAdd(Schema):
    name: str = "slurm"
    kind: Literal["slurm"] = "slurm"
    slurm: SlurmOptions = SlurmOptions()

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        check_name(value, "engine name")
        if value in RESERVED_NAMES:
            raise ValueError(f"'{value}' is the name of an engine of Shoal's own")
        return value


class EngineView(View):
    name: str
    kind: str
    slurm: SlurmOptions
    created_at: Utc
    machines: int
    slots: int
    """Of machines that are up."""
    problems: list[str] = []
