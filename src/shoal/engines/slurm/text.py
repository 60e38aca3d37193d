"""What Slurm's programs print, read; and what they are given, written. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NAME_PREFIX = "shoal-"
LEAST_VERSION = (22, 5)
QUEUE_FORMAT = "%i|%j|%T|%S|%r"
NODE_FORMAT = "%N|%o|%P|%c|%G|%T|%E"
_NOT_BEGUN = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
_TAKES_WORK = frozenset("allocated completing idle mixed planned reserved".split())
_DRAINS = frozenset("drained draining maint perfctrs powering_down reboot".split())
_NOT_RESPONDING = "*"
_MARKS = "*~#!%$@^-"
"""What sinfo puts behind a state: asleep, waking up, planned and so on."""
_REASONS = {
    "Resources": "all that could run it is in use",
    "Priority": "jobs of others are before it",
    "QOSMaxCpuPerUserLimit": "your QOS lets you use no more at once",
    "AssocGrpCpuLimit": "your account lets you use no more at once",
    "AssocGrpGRES": "your account lets you use no more at once",
    "ReqNodeNotAvail": "a node it could use is down or reserved",
    "PartitionDown": "the partition is down",
    "PartitionNodeLimit": "it asks for more nodes than the partition lets a job have",
    "PartitionTimeLimit": "it asks for more time than the partition lets a job have",
    "JobHeldUser": "someone holds it: scontrol release",
    "JobHeldAdmin": "an admin of the cluster holds it",
    "BeginTime": "it may not begin yet",
    "None": "Slurm has not looked at it yet",
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
        """For people: Slurm's own word, what it means, and when Slurm thinks it will start."""
        if self.state == "CONFIGURING":
            return f"Slurm makes its nodes ready, as job {self.job_id}"
        meaning = _REASONS.get(self.reason.partition(",")[0].strip("()"))
        when = f"; Slurm expects to start it at {self.starts}" if self.starts[:1].isdigit() else ""
        return (
            f"it waits in Slurm's queue as job {self.job_id}: {self.reason}{f' ({meaning})' if meaning else ''}{when}"
        )


@dataclass(frozen=True, slots=True)
class Host:
    """A node of the cluster; `node` is our word for a share of an attempt."""

    name: str
    address: str
    """Or what the cluster calls it by."""
    cpus: int
    gpus: int
    state: str
    """up, draining or lost."""
    problem: str | None


def read_queue(text: str) -> dict[str, Queued]:
    """Attempt id → its job, of squeue's lines in QUEUE_FORMAT."""
    found = {}
    for line in text.splitlines():
        job_id, _, rest = line.partition("|")
        name, _, rest = rest.partition("|")
        if name.startswith(NAME_PREFIX) and rest.count("|") >= 2:
            found[name.removeprefix(NAME_PREFIX)] = Queued(job_id.strip(), *rest.split("|", 2))
    return found


def read_hosts(text: str, partition: str | None) -> list[Host]:
    """Of sinfo's lines in NODE_FORMAT; without a partition, those of the default one."""
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
    told = "" if reason in ("", "none", "(null)") else f": {reason}"
    problem = None if ours == "up" else f"Slurm says {state}{told}"
    return Host(name, address, int(re.sub(r"\D", "", cpus) or 0), _gpus(gres), ours, problem)


def _gpus(gres: str) -> int:
    """`gpu:a100:4(S:0-1),shard:8` has four."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    counts = [g.rpartition(":")[2] for g in plain.split(",") if g == "gpu" or g.startswith("gpu:")]
    return sum(int(c) if c.isdigit() else 1 for c in counts)


def read_version(text: str) -> tuple[int, int] | None:
    """`slurm-wlm 22.05.8` is (22, 5)."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def batch_script(step: Sequence[str], env: Mapping[str, str]) -> str:
    """One agent per task. A SIGTERM is for the agents, which need a moment: the script itself outlives it."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    lines = [
        "#!/bin/sh",
        *exports,
        "trap : TERM INT",
        f"{shlex.join(step)} &",
        "until wait $! || ! kill -0 $! 2>/dev/null; do :; done",
    ]
    return "\n".join(lines) + "\n"
