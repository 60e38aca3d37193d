"""Commands to run a job manually on each of its machines: what the agents would run, with the same environment.

Jobs with several workers use torchrun.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent.data.inputs import CHECKPOINT, INPUT, OUTPUT
from shoal.agent.sandbox.mounts import Bind, Rewriter
from shoal.agent.wire import JoinReply, Launch
from shoal.agent.workers import runtime
from shoal.agent.workers.data_option import wants_data

if TYPE_CHECKING:
    from shoal.core.jobs import JobView

_KEPT = ("PYTHONUNBUFFERED", "USE_DDP", "ACCELERATE_USE_CPU", "OUTPUT_DIR", "DATA_LOCATION", "SHOAL_RESUME_FROM")
_OF_FLEXAI = "FLEXAI_"
"""Prefix of more variables that are kept. All others concern the agent, which does not run here."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """Commands for one node."""

    node: int
    folder: str
    env: dict[str, str]
    secrets: dict[str, str]
    """Environment variable → name of the secret with its value."""
    argv: list[str]

    def lines(self) -> list[str]:
        """Return the shell commands. A secret is read from the shell's environment; the shell stops if it is not set."""
        asked = [
            f"export {name}=\"${{{name}:?set it to the value of the secret '{of}'}}\""
            for name, of in self.secrets.items()
        ]
        given = [f"export {name}={shlex.quote(value)}" for name, value in self.env.items()]
        return [f"cd {shlex.quote(self.folder)}", *asked, *given, 'mkdir -p "$OUTPUT_DIR"', shlex.join(self.argv)]


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of a job's code, data and output on a machine that runs it manually."""

    root: Path

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def output(self) -> Path:
        return self.root / "output-checkpoint"

    @property
    def checkpoint(self) -> Path:
        return self.root / "input-checkpoint"

    @property
    def input(self) -> Path:
        return self.root / "input"


@dataclass(frozen=True, slots=True)
class Wanted:
    job: JobView
    datasets: list[str]
    """Names of the datasets, without versions."""
    kind: str
    """Kind of the slots that it has run on: cpu, cuda …"""
    address: str
    port: int
    """Port on node 0 for the rendezvous of the workers."""


def by_hand(wanted: Wanted, places: Places, source: Path) -> list[ByHand]:
    """Return the commands of every node. `source` is a copy of the job's code to analyse; the job may run elsewhere."""
    job, spec = wanted.job, wanted.job.spec
    rewrite = Rewriter(
        [
            *(Bind(f"{INPUT}/{name}", str(places.input / name)) for name in wanted.datasets),
            Bind(INPUT, str(places.input)),
            Bind(OUTPUT, str(places.output)),
            Bind(CHECKPOINT, str(places.checkpoint)),
        ]
    )
    command = runtime.command(spec.entry, "python", source)
    data = _data(wanted.datasets)
    argv = [rewrite(word.replace(str(source), str(places.code))) for word in command.argv]
    script = runtime.script_text(source, command.script)
    if data and wants_data(spec.entry, source, command.script):
        argv += ["--data", rewrite(data)]
    nodes = []
    for node in range(job.nodes):
        launch, join = _launch(wanted, node), _join(wanted)
        paths = runtime.Paths(
            rewrite(data) if data else None, rewrite(OUTPUT), rewrite(CHECKPOINT) if spec.checkpoint else None, ""
        )
        contract = runtime.node_env(launch, join, paths)
        env = {k: v for k, v in contract.items() if k in _KEPT or k.startswith(_OF_FLEXAI)}
        env |= {k: rewrite(v) for k, v in spec.env.items()}
        env |= {} if command.per_rank else runtime.launcher_env(launch, join)
        plain = spec.launcher != "torchrun" and runtime.is_plain(join, script)
        words = _torchrun(launch, join, argv) if command.per_rank and not plain else argv
        nodes.append(ByHand(node, str(places.code), env, spec.secrets, words))
    return nodes


def _torchrun(launch: Launch, join: JoinReply, worker: list[str]) -> list[str]:
    """Return a torchrun command in its usual short form, in which torchrun chooses the interpreter, if it is sufficient."""
    first = worker[2]
    if first.startswith("-") and first != "-m":
        return runtime.torchrun(launch, join, "python", worker)
    ours = runtime.torchrun(launch, join, "python", worker[2:])
    return ["torchrun", *(word for word in ours[ours.index("torch.distributed.run") + 1 :] if word != "--no-python")]


def _launch(wanted: Wanted, node: int) -> Launch:
    known = {"job_id": wanted.job.id, "job_name": wanted.job.name, "node": node, "slot_kind": wanted.kind}
    return Launch(known | {"attempt_id": "", "attempt": 1, "url": "", "cache_dir": "", "slots": []})


def _join(wanted: Wanted) -> JoinReply:
    job = wanted.job
    master = {"master_addr": wanted.address, "master_port": wanted.port}
    several = job.spec.max_nodes * job.accels > 1
    return JoinReply({"ready": True, "num_nodes": job.nodes, "accels": job.accels, "is_distributed": several, **master})


def _data(names: list[str]) -> str | None:
    return None if not names else f"{INPUT}/{names[0]}" if len(names) == 1 else INPUT
