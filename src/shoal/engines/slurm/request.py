"""Builds the Slurm job of an attempt: one job, one task per node. Pure; `plan` shows it, `start` submits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from shoal.core.agents import Launch
from shoal.engines.base import Gang
from shoal.engines.slurm import text
from shoal.engines.slurm.options import JOB_OPTIONS, SlurmOptions
from shoal.engines.slurm.text import Host

_NOTICE = "--signal=TERM@60"
"""A minute before Slurm's own time limit the agents are told to stop, so that the job can save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Builds the commands, scripts and files of Slurm jobs."""

    engine: str
    options: SlurmOptions
    nodes_dir: str
    python: str
    env: dict[str, str] = field(default_factory=dict)
    """Variables added to the agents' environment."""

    def sbatch(self, gang: Gang, hosts: Sequence[Host]) -> list[str]:
        first, meant = gang.nodes[0], {launch.machine for launch in gang.nodes}
        exclude = [machine for machine in gang.exclude if machine not in meant]
        return [
            "sbatch",
            "--parsable",
            "--no-requeue",
            f"--job-name={text.NAME_PREFIX}{gang.attempt_id}",
            f"--chdir={self.nodes_dir}",
            f"--output={self.nodes_dir}/{folder(first)}/slurm.log",
            *self.resources(
                first.slot_kind,
                len(gang.nodes),
                len(first.slots),
                hosts,
                exclude,
                gang.options,
                self._type(first, hosts),
            ),
        ]

    def resources(
        self,
        kind: str,
        nodes: int,
        slots: int,
        hosts: Sequence[Host],
        exclude: Sequence[str] = (),
        own: Mapping[str, str] | None = None,
        gpu_type: str = "",
    ) -> list[str]:
        """Return the resource options of sbatch.

        Without `distinct_hosts` Slurm may put several nodes on one machine, as our other engines do. `own` are options of the
        job itself, which replace those of the cluster.
        """
        options, prefix = self.options, f"{self.engine}:"
        # Only names that Slurm knows: sbatch rejects others.
        avoided = [host.name for host in hosts if f"{prefix}{host.name}" in exclude]
        wishes = {"partition": options.partition, "account": options.account, "qos": options.qos}
        wishes |= {name: value for name, value in (own or {}).items() if name in JOB_OPTIONS}
        return [
            f"--ntasks={nodes}",
            *([f"--nodes={nodes}", "--ntasks-per-node=1"] if options.distinct_hosts else []),
            *self._share(kind, slots, hosts, gpu_type),
            *([] if any(arg.startswith("--signal=") for arg in options.extra_args) else [_NOTICE]),
            *(f"--{name}={value}" for name, value in wishes.items() if value),
            *([f"--exclude={','.join(avoided)}"] if avoided else []),
            *(arg for arg in options.extra_args if arg.partition("=")[0].removeprefix("--") not in (own or {})),
        ]

    def script(self, gang: Gang, hosts: Sequence[Host]) -> str:
        first = gang.nodes[0]
        nodes = ",".join(str(launch.node) for launch in gang.nodes)
        step = [self.python, "-m", "shoal.engines.slurm.step", self.engine, self.nodes_dir, gang.attempt_id, nodes]
        share = self._share(first.slot_kind, len(first.slots), hosts, self._type(first, hosts))
        # When one agent ends, the others continue: the server decides what to do with them.
        return text.batch_script(["srun", "--kill-on-bad-exit=0", *share, *step], self.env)

    def files(self, gang: Gang) -> dict[str, bytes]:
        """Return path → content of the launch files. Slurm may run any node on any machine, so all get the same slot kind."""
        kind = {"slot_kind": gang.nodes[0].slot_kind}
        return {f"{folder(n)}/launch.json": n.model_copy(update=kind).model_dump_json().encode() for n in gang.nodes}

    def _type(self, launch: Launch, hosts: Sequence[Host]) -> str:
        """Return the type of GPU that the scheduler chose for a node; empty if the cluster has only one, or names none."""
        if len({kind for host in hosts for kind in host.types}) < 2:
            return ""
        name = launch.machine.partition(":")[2]
        types = next((host.types for host in hosts if host.name == name), ())
        return next((types[slot] for slot in launch.slots if slot < len(types)), "")

    def _share(self, kind: str, slots: int, hosts: Sequence[Host], gpu_type: str = "") -> list[str]:
        """Return the options for one node's share of a machine. A GPU comes with as many cores as each machine has per GPU."""
        if kind == "cpu":
            return [f"--cpus-per-task={slots * self.options.cpus_per_slot}"]
        cores = [host.cpus // host.gpus for host in hosts if host.gpus]
        return [
            f"--cpus-per-task={slots * max(1, min(cores, default=1))}",
            f"--gpus-per-task={gpu_type + ':' if gpu_type else ''}{slots}",
        ]


def folder(launch: Launch) -> str:
    """Return the name of a node's directory."""
    return PurePosixPath(launch.work_dir).name
