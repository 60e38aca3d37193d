"""A job as commands to type on each of its machines: what the agents would run, through torchrun where there are several workers, with the same environment."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.agent import runtime
from shoal.agent.inputs import CHECKPOINT, INPUT, OUTPUT
from shoal.agent.sandbox import Bind, Rewriter
from shoal.agent.wire import JoinReply, Launch

if TYPE_CHECKING:
    from shoal.core.jobs import JobView

_KEPT = ("PYTHONUNBUFFERED", "USE_DDP", "ACCELERATE_USE_CPU", "OUTPUT_DIR", "DATA_LOCATION", "SHOAL_RESUME_FROM")
_OF_FLEXAI = "FLEXAI_"
"""The rest of the environment is about the agent, which is not there."""


@dataclass(frozen=True, slots=True)
class ByHand:
    """One node."""

    node: int
    folder: str
    env: dict[str, str]
    secrets: dict[str, str]
    """Environment name → the secret whose value belongs there."""
    argv: list[str]

    def lines(self) -> list[str]:
        """For a shell. A secret is taken from its environment, and asked for if it is not there."""
        asked = [
            f"export {name}=\"${{{name}:?set it to the value of the secret '{of}'}}\""
            for name, of in self.secrets.items()
        ]
        given = [f"export {name}={shlex.quote(value)}" for name, value in self.env.items()]
        return [f"cd {shlex.quote(self.folder)}", *asked, *given, 'mkdir -p "$OUTPUT_DIR"', shlex.join(self.argv)]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the job's things are on the machines that run it by hand."""

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
    """Their names, without versions."""
    kind: str
    """Of the slots it has run on: cpu, cuda …"""
    address: str
    port: int
    """Of node 0."""


def by_hand(wanted: Wanted, places: Places, source: Path) -> list[ByHand]:
    """`source`: the job's code, to look into; it need not be where it will run."""
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
    if data and script and not runtime.passes_data(spec.entry) and runtime.accepts_data(script):
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
    """As people write it, where that says all: torchrun then brings the interpreter."""
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
