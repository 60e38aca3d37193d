"""Options of a Slurm cluster: those of `shoal engine add slurm`, of the API and of the database."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator

from shoal.core.schema import Schema

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@/-]*")
_LOGIN = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9_.:-]*")
_OURS = frozenset(
    "array chdir comment dependency error gpus-per-task cpus-per-task input job-name no-requeue ntasks nodes open-mode output "
    "ntasks-per-node parsable requeue test-only wait wrap".split()
)
"""Options of sbatch that Shoal sets itself."""

JOB_OPTIONS = frozenset({"partition", "account", "qos", "constraint", "reservation"})
"""Options of sbatch that a single job may give."""


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"{text!r} is not a valid Slurm name")
    return text


SlurmName = Annotated[str, Field(max_length=200), AfterValidator(_word)]


class SlurmOptions(Schema):
    """Settings for a Slurm cluster."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    partition: SlurmName | None = None
    """Partition to submit to (default: the cluster's own default)."""
    account: SlurmName | None = None
    """Account to submit with."""
    qos: SlurmName | None = None
    """Quality of service to request."""
    extra_args: list[str] = Field(default=[], max_length=50)
    """More options for sbatch, passed unchanged: `--mem-per-cpu=4G --time=8:00:00`."""
    login: str | None = Field(default=None, max_length=300)
    """USER@HOST of a login node to run Slurm's commands on, if the server's machine does not have them."""
    key: str | None = Field(default=None, max_length=1000)
    """Path of the SSH private key for the login node, on the server's machine (default: SSH's own default)."""
    home: str | None = Field(default=None, max_length=1000)
    """Directory for Shoal on the cluster's shared file system (default: one in the server's data directory)."""
    python: str | None = Field(default=None, max_length=1000)
    """Path of a Python with Shoal on the compute nodes (default: the server's own)."""
    url: str | None = Field(default=None, max_length=1000)
    """URL of this server for the compute nodes (default: the address on the route to them)."""
    cpus_per_slot: int = Field(default=2, ge=1, le=1024)
    """CPUs per slot on nodes without GPUs (default 2)."""
    squeue_every_s: int = Field(default=10, ge=0, le=300)
    """Least seconds between two calls of squeue, which burden Slurm's controller (default 10)."""
    distinct_hosts: bool = False
    """Run every node of a job on a host of its own (default: Slurm may put several on one)."""
    gpus: Literal["cuda", "rocm", "xpu"] = "cuda"
    """Kind of its GPUs: cuda, rocm or xpu (default cuda)."""

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
