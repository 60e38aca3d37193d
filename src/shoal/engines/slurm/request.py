"""What is asked of Slurm for an attempt: one job, one task per node. Pure; `plan` shows it, `start` sends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from shoal.core.agents import Launch
from shoal.core.engines import SlurmOptions
from shoal.engines.base import Gang
from shoal.engines.slurm import text
from shoal.engines.slurm.text import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    engine: str
    options: SlurmOptions
    nodes_dir: str
    python: str
    env: dict[str, str] = field(default_factory=dict)
    """Of the agents, on top of what they find there."""

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
            *self.resources(first.slot_kind, len(gang.nodes), len(first.slots), hosts, exclude),
        ]

    def resources(
        self, kind: str, nodes: int, slots: int, hosts: Sequence[Host], exclude: Sequence[str] = ()
    ) -> list[str]:
        """Slurm may put several nodes on one machine, as our own engines do."""
        options, prefix = self.options, f"{self.engine}:"
        avoided = [
            host.name for host in hosts if f"{prefix}{host.name}" in exclude
        ]  # sbatch takes no name it does not know
        wishes = {"partition": options.partition, "account": options.account, "qos": options.qos}
        return [
            f"--ntasks={nodes}",
            *self._share(kind, slots, hosts),
            *(f"--{name}={value}" for name, value in wishes.items() if value),
            *([f"--exclude={','.join(avoided)}"] if avoided else []),
            *options.extra_args,
        ]

    def script(self, gang: Gang, hosts: Sequence[Host]) -> str:
        first = gang.nodes[0]
        nodes = ",".join(str(launch.node) for launch in gang.nodes)
        step = [self.python, "-m", "shoal.engines.slurm.step", self.engine, self.nodes_dir, gang.attempt_id, nodes]
        share = self._share(first.slot_kind, len(first.slots), hosts)
        # One agent's end is not the others': the server decides what becomes of them.
        return text.batch_script(["srun", "--kill-on-bad-exit=0", *share, *step], self.env)

    def files(self, gang: Gang) -> dict[str, bytes]:
        """Launch files, by path. Slurm may put any of them anywhere, so they are all of one kind."""
        kind = {"slot_kind": gang.nodes[0].slot_kind}
        return {f"{folder(n)}/launch.json": n.model_copy(update=kind).model_dump_json().encode() for n in gang.nodes}

    def _share(self, kind: str, slots: int, hosts: Sequence[Host]) -> list[str]:
        """Of a machine, for one node of ours. A GPU brings the cores that every machine has for each of its own."""
        if kind == "cpu":
            return [f"--cpus-per-task={slots * self.options.cpus_per_slot}"]
        cores = [host.cpus // host.gpus for host in hosts if host.gpus]
        return [f"--cpus-per-task={slots * max(1, min(cores, default=1))}", f"--gpus-per-task={slots}"]


def folder(launch: Launch) -> str:
    """The name of a node's directory."""
    return PurePosixPath(launch.work_dir).name
