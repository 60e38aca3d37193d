"""Parses the output of Slurm's programs and writes the batch script. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.core.faults import out_of_space

NAME_PREFIX = "shoal-"
LEAST_VERSION = (22, 5)
QUEUE_FORMAT = "%i|%j|%T|%S|%r"
NODE_FORMAT = "%N|%o|%P|%c|%G|%T|%E"
_NOT_BEGUN = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_TAKES_WORK = frozenset("allocated completing idle mixed planned reserved".split())
_DRAINS = frozenset("drained draining maint perfctrs powering_down reboot".split())
_NOT_RESPONDING = "*"
_MARKS = "*~#!%$@^-"
"""Marks that sinfo appends to a state: powered down, powering up, planned and so on."""
_REASONS = {
    "Resources": "all suitable resources are in use",
    "Priority": "jobs with a higher priority are ahead of it",
    "QOSMaxCpuPerUserLimit": "you have reached the limit of your QOS",
    "AssocGrpCpuLimit": "your account has reached its limit",
    "AssocGrpGRES": "your account has reached its limit",
    "ReqNodeNotAvail": "a node it could use is down or reserved",
    "PartitionDown": "the partition is down",
    "PartitionNodeLimit": "it requests more nodes than the partition allows per job",
    "PartitionTimeLimit": "it requests more time than the partition allows per job",
    "JobHeldUser": "a user holds it; continue with: scontrol release",
    "JobHeldAdmin": "an administrator of the cluster holds it",
    "BeginTime": "its earliest start time has not been reached",
    "None": "Slurm has not considered it yet",
}


@dataclass(frozen=True, slots=True)
class Queued:
    """A job of ours in Slurm's queue."""

    job_id: str
    state: str
    starts: str
    reason: str

    @property
    def waits(self) -> bool:
        return self.state in _NOT_BEGUN

    @property
    def why(self) -> str:
        """Why it waits, for people: Slurm's reason, its meaning, and the expected start."""
        if self.state == "CONFIGURING":
            return f"Slurm is preparing its nodes (job {self.job_id})"
        meaning = _REASONS.get(self.reason.partition(",")[0].strip("()"))
        when = f"; Slurm expects to start it at {self.starts}" if self.starts[:1].isdigit() else ""
        return (
            f"it waits in Slurm's queue as job {self.job_id}: {self.reason}{f' ({meaning})' if meaning else ''}{when}"
        )


@dataclass(frozen=True, slots=True)
class Host:
    """A node of the cluster, called host here because `node` means a share of an attempt."""

    name: str
    address: str
    """Its address, or the name by which the cluster knows it."""
    cpus: int
    gpus: int
    state: str
    """State: up, draining or lost."""
    problem: str | None
    types: tuple[str, ...] = ()
    """Type of each GPU, as the site named it in Slurm's GRES; empty names if it did not."""


def read_full(df: str) -> str:
    """Return why no node can start, by the output of `df -Pk`: its file system has no room. Empty if it has, or is not known."""
    found = re.search(r"(\d+)\s+\d+%", df)
    return out_of_space(int(found[1]) << 10) if found else ""


def read_queue(text: str) -> dict[str, Queued]:
    """Return attempt id → job from squeue's lines in QUEUE_FORMAT."""
    found = {}
    for line in text.splitlines():
        job_id, _, rest = line.partition("|")
        name, _, rest = rest.partition("|")
        if name.startswith(NAME_PREFIX) and rest.count("|") >= 2:
            found[name.removeprefix(NAME_PREFIX)] = Queued(job_id.strip(), *rest.split("|", 2))
    return found


def read_hosts(text: str, partition: str | None) -> list[Host]:
    """Return the hosts from sinfo's lines in NODE_FORMAT; without a partition, those of the default partition."""
    found: dict[str, Host] = {}
    for line in text.splitlines():
        parts = line.strip().split("|", 6)
        if len(parts) == 7 and (parts[2].rstrip("*") == partition if partition else parts[2].endswith("*")):
            found.setdefault(parts[0], _host(*parts))
    return list(found.values())


def _host(name: str, address: str, _: str, cpus: str, gres: str, state: str, reason: str) -> Host:
    kind, marks = state.rstrip(_MARKS).lower(), state[len(state.rstrip(_MARKS)) :]
    ours = "up" if kind in _TAKES_WORK else "draining" if kind in _DRAINS else "lost"
    if _NOT_RESPONDING in marks and ours == "up":
        ours = "lost"
    details = "" if reason in ("", "none", "(null)") else f": {reason}"
    problem = None if ours == "up" else f"Slurm says {state}{details}"
    types = _gpu_types(gres)
    return Host(name, address, int(re.sub(r"\D", "", cpus) or 0), len(types), ours, problem, types)


def _gpu_types(gres: str) -> tuple[str, ...]:
    """Return the type of each GPU in a GRES text: `gpu:a100:2(S:0-1),gpu:1,shard:8` has a100, a100 and one without a type."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    found: list[str] = []
    for gpu in (part for part in plain.split(",") if part == "gpu" or part.startswith("gpu:")):
        words = gpu.split(":")[1:]
        count = int(words.pop()) if words and words[-1].isdigit() else 1
        found += [words[0] if words else ""] * count
    return tuple(found)


def read_version(text: str) -> tuple[int, int] | None:
    """Return major and minor version: (22, 5) for `slurm-wlm 22.05.8`; None without one."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def batch_script(step: Sequence[str], env: Mapping[str, str]) -> str:
    """Return a batch script that runs one agent per task.

    The script itself ignores SIGTERM and waits: the signal is for the agents, which need a moment to end.
    """
    exports = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    lines = [
        "#!/bin/sh",
        *exports,
        "trap : TERM INT",
        f"{shlex.join(step)} &",
        "until wait $! || ! kill -0 $! 2>/dev/null; do :; done",
    ]
    return "\n".join(lines) + "\n"
