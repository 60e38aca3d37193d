"""Read the sizes of the parallelism from `parallel=` and `mesh=`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.errors import InvalidSpec

WAYS = ("auto", "ddp", "fsdp", "pipeline", "none")
AXES = ("ddp", "fsdp", "cp", "tp", "pipeline")
ALIASES = {"pp": "pipeline"}
OPTIONS = ("num_microbatches",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    replicas: int = 1
    """Number of copies of the model that read different data and average their gradients (ddp)."""
    shards: int = 1
    """Number of processes that share the storage of one copy (fsdp); each reads its own data."""
    sequence: int = 1
    """Number of processes that compute consecutive parts of each sequence (cp); all read the same data."""
    tensor: int = 1
    """Number of processes that divide every matrix product among them (tp); all read the same data."""
    stages: int = 1
    """Number of processes that hold consecutive blocks of one copy (pipeline); all read the same data."""
    num_microbatches: int = 1
    """Number of micro-batches a batch is cut into in a pipeline; by default the number of stages."""

    @property
    def is_plain(self) -> bool:
        return self.replicas == self.shards == self.stages == self.together == 1

    @property
    def together(self) -> int:
        """Number of neighbouring processes that read the same data and need the same random numbers (cp and tp)."""
        return self.sequence * self.tensor


def read_plan(parallel: str, mesh: Mapping[str, int] | None, world_size: int) -> Plan:
    """Return the sizes. Without a mesh, the named kind uses all ranks; a single rank needs no parallelism."""
    if parallel not in WAYS:
        raise InvalidSpec(f"parallel={parallel!r} is not one of {', '.join(WAYS)}.")
    mesh = _named(mesh or {})
    _check(parallel, mesh)
    if world_size == 1:
        return Plan()
    axes = {axis: size for axis, size in mesh.items() if axis in AXES}
    if not axes and parallel != "none":
        axes = {"ddp" if parallel == "auto" else parallel: world_size}
    product = 1
    for size in axes.values():
        product *= size
    if axes and product != world_size:
        asked = " × ".join(f"{axis} {size}" for axis, size in axes.items())
        raise InvalidSpec(
            f"The mesh {asked} needs {product} processes, but the world has {world_size}.",
            hint="Start as many workers as the product of the mesh, or omit `mesh`.",
        )
    stages = axes.get("pipeline", 1)
    return Plan(
        replicas=axes.get("ddp", 1),
        shards=axes.get("fsdp", 1),
        sequence=axes.get("cp", 1),
        tensor=axes.get("tp", 1),
        stages=stages,
        num_microbatches=mesh.get("num_microbatches", stages),
    )


def _named(mesh: Mapping[str, int]) -> dict[str, int]:
    """Return the mesh with one name for each axis."""
    named = {ALIASES.get(name, name): size for name, size in mesh.items()}
    if len(named) < len(mesh):
        raise InvalidSpec("mesh has both 'pp' and 'pipeline', which are the same axis.", hint="Leave one of them out.")
    return named


def _check(parallel: str, mesh: Mapping[str, int]) -> None:
    for name, size in mesh.items():
        if name not in AXES + OPTIONS:
            hint = "Experts cannot be spread over workers yet; fsdp shards them." if name == "ep" else None
            raise InvalidSpec(f"mesh has an unknown key {name!r}; allowed are {', '.join(AXES + OPTIONS)}.", hint=hint)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidSpec(f"mesh[{name!r}] must be a whole number of at least 1, not {size!r}.")
    others = [axis for axis in ("fsdp", "cp", "tp") if mesh.get(axis, 1) > 1]
    if others and mesh.get("pipeline", 1) > 1:
        raise InvalidSpec(
            f"{others[0]} and pipeline cannot be combined in one mesh; combine either with ddp.",
            hint="ddp, fsdp, cp and tp can be combined with each other in any way.",
        )
    axes = [axis for axis in AXES if axis in mesh]
    if axes and parallel not in ("auto", *axes):
        raise InvalidSpec(f"parallel={parallel!r} does not fit a mesh of {', '.join(axes)}.")
