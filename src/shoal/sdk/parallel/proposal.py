"""Propose a mesh for a model: the cheapest one that fits into the memory of the devices, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.core.errors import InvalidSpec, UsageError
from shoal.core.sizes import parse_size

if TYPE_CHECKING:
    from torch import nn

GB = 1e9
USABLE = 0.9
"""Share of the memory that is planned with; the rest is for the libraries, buffers of messages and fragmentation."""
INSIDE_MB_S = 50_000.0
"""Speed between the devices of a machine if nothing is known: that of a slow NVLink."""
ACROSS_MB_S = 1_000.0
"""Speed between machines if nothing is known: that of 10 Gbit/s."""
TFLOPS = 100.0
"""Useful speed of one device if nothing is known."""
KEPT = {"none": 68, "selective": 36, "full": 4}
"""Bytes per token, layer and unit of width that a block keeps for the backward pass in fp32, with attention that is not stored."""
AGAIN = {"none": 0.0, "selective": 0.1, "full": 1 / 3}
"""Share of the computation that is done again."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Sizes of a model on which its proposal depends."""

    params: int
    trained: int
    layers: int
    width: int
    largest: int
    """Parameters of the largest part that fsdp gathers at once."""
    vocabulary: int
    """Rows of the largest embedding, each of which is a logit per token; 0 without one."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mesh, and why it was chosen."""

    mesh: dict[str, int]
    activation_checkpointing: str
    memory: int
    """Bytes that each device is expected to need."""
    why: tuple[str, ...]

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `shoal.init`."""
        return {"mesh": self.mesh, "activation_checkpointing": self.activation_checkpointing}

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return "\n".join([f"shoal.init({said})", *(f"- {line}" for line in self.why)])


@dataclass(frozen=True, slots=True)
class _Candidate:
    ddp: int
    fsdp: int
    cp: int
    tp: int
    recompute: str

    @property
    def mesh(self) -> dict[str, int]:
        sizes = {"ddp": self.ddp, "fsdp": self.fsdp, "cp": self.cp, "tp": self.tp}
        return {axis: size for axis, size in sizes.items() if size > 1}


def plan(
    model: nn.Module,
    devices: int,
    *,
    memory: int | str | None = None,
    tokens: int = 0,
    per_node: int | None = None,
    mb_s: float | None = None,
    inside_mb_s: float = INSIDE_MB_S,
    tflops: float = TFLOPS,
) -> Proposal:
    """Propose a mesh for training a model with AdamW in fp32. Nothing is measured or started; the figures are estimates.

    Args:
        model: The model. One made inside `with shoal.empty_model():` takes no memory.
        devices: Number of devices, one per worker.
        memory: Memory of each device, in bytes or as "80GB". Default: that of this machine's first GPU.
        tokens: Tokens (rows times length) that each data share reads at once.
        per_node: Devices of one machine. Default: all devices are in one machine.
        mb_s: Speed of the slowest link between the machines in MB/s, as measured by `shoal pool check`.
        inside_mb_s: Speed between the devices of one machine in MB/s.
        tflops: Useful speed of one device in 10^12 operations per second.

    Returns:
        The proposal: `mesh`, `activation_checkpointing`, the `memory` it needs, and `why`. Print it to read all of it.

    Raises:
        UsageError: No mesh fits into the memory.

    Example::

        with shoal.empty_model():
            model = AutoModelForCausalLM.from_config(config)
        proposal = shoal.plan(model, 16, memory="80GB", per_node=8, tokens=8192, mb_s=2900)
        print(proposal)
        run = shoal.init(**proposal.options)
    """
    available, node = _memory(memory), per_node or devices
    if devices < 1 or node < 1 or (devices > node and devices % node):
        raise InvalidSpec(f"{devices} devices cannot be {node} on each machine.", hint="Pass per_node=.")
    figures = read_figures(model)
    across = mb_s or ACROSS_MB_S
    fitting, smallest = [], None
    for one in _candidates(devices, min(node, devices), with_cp=tokens > 0):
        needs = _needs(figures, one, tokens)
        if smallest is None or needs < smallest:
            smallest = needs
        if needs <= USABLE * available:
            seconds = _seconds(figures, one, tokens, node, across, inside_mb_s, tflops)
            fitting.append((seconds, len(one.mesh), needs, one))
    if not fitting:
        raise UsageError(
            f"No mesh of {devices} devices fits: each would need at least {(smallest or 0) / GB:.1f} GB of "
            f"{available / GB:.1f} GB, of which {USABLE:.0%} are planned with.",
            hint="Use more devices, devices with more memory, or fewer tokens at once.",
        )
    _, _, needs, best = min(fitting, key=lambda found: found[:3])
    return Proposal(
        best.mesh or {"ddp": 1},
        best.recompute,
        needs,
        _why(figures, best, needs, available, tokens, devices, node, mb_s),
    )


def read_figures(model: nn.Module) -> Figures:
    """Return the sizes of a model, which may be without memory."""
    from torch import nn

    from shoal.sdk.parallel.blocks import block_lists, size

    lists = block_lists(model)
    blocks = lists[0] if lists else []
    total = size(model)
    inside = sum(size(block) for block in blocks)
    norms = [p.numel() for block in blocks[:1] for p in block.parameters() if p.dim() == 1]
    largest = max([*(size(block) for block in blocks), total - inside])
    return Figures(
        params=total,
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        layers=len(blocks),
        width=max(set(norms), key=norms.count) if norms else 0,
        largest=largest,
        vocabulary=max((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=0),
    )


def _candidates(devices: int, node: int, *, with_cp: bool) -> Iterator[_Candidate]:
    """Yield every mesh of these devices. Parts of matrices and sequences stay inside a machine."""
    for tp in _divisors(node):
        for cp in _divisors(node // tp) if with_cp else [1]:
            for fsdp in _divisors(devices // (tp * cp)):
                for recompute in KEPT:
                    yield _Candidate(devices // (tp * cp * fsdp), fsdp, cp, tp, recompute)


def _needs(of: Figures, one: _Candidate, tokens: int) -> int:
    """Return the bytes that each device needs: state, what is gathered, activations."""
    shards = one.fsdp * one.cp
    state = (4 * of.params + 12 * of.trained) / (shards * one.tp)
    gathered = 2 * 4 * of.largest / one.tp if shards > 1 else 0
    per_layer = tokens * of.width / one.cp
    blocks = per_layer * (of.layers * KEPT[one.recompute] + (KEPT["none"] if one.recompute != "none" else 0))
    return int(state + gathered + blocks + 8 * tokens * of.vocabulary)


def _seconds(
    of: Figures, one: _Candidate, tokens: int, node: int, across: float, inside: float, tflops: float
) -> float:
    """Return the seconds per step and data share that are lost to messages and to computing again, without overlap."""
    weights, together = 4 * of.params / one.tp, one.cp * one.tp
    shards = one.fsdp * one.cp

    def link(reach: int) -> float:
        """Return the bytes per second of a group that spans this many neighbours."""
        return 1e6 * (inside if reach <= node else across)

    seconds = 3 * weights * (shards - 1) / shards / link(one.fsdp * together)
    seconds += 2 * weights / shards * (one.ddp - 1) / one.ddp / link(one.ddp * one.fsdp * together)
    activations = 4 * tokens * of.width * of.layers
    seconds += 4 * 2 * activations * (one.tp - 1) / one.tp / link(one.tp)
    seconds += 3 * 2 * activations * (one.cp - 1) / one.cp / link(together)
    compute = 6 * of.params * tokens / (tflops * 1e12) / together
    # Processes that read the same data do less of it per step than if each read its own.
    return (seconds + AGAIN[one.recompute] * compute) * together + (together - 1) * compute * 0.05


def _why(
    of: Figures, best: _Candidate, needs: int, available: int, tokens: int, devices: int, node: int, mb_s: float | None
) -> tuple[str, ...]:
    state = 4 * of.params + 12 * of.trained
    lines = [
        f"{of.params / 1e6:,.0f} M parameters: weights, gradients and AdamW take {state / GB:.1f} GB, and each device has "
        f"{available / GB:.1f} GB.",
        f"Each device is expected to need {needs / GB:.1f} GB"
        + (f", with {tokens:,} tokens at once." if tokens else ", without activations: pass tokens= to include them."),
    ]
    if best.fsdp == best.cp == best.tp == 1:
        lines.append("The whole model fits on one device, so only gradients are exchanged (ddp).")
    if best.fsdp > 1:
        inside = best.fsdp * best.cp * best.tp <= node
        reach = "inside a machine" if inside else "across machines, as it would not fit otherwise or costs less"
        lines.append(f"fsdp divides the state by {best.fsdp}, {reach}.")
    if best.ddp > 1 and best.fsdp > 1:
        lines.append(
            f"{best.ddp} copies exchange only their gradients, {'between' if devices > node else 'inside'} machines."
        )
    if best.tp > 1:
        lines.append(f"tp divides matrices by {best.tp}: less is gathered at once.")
    if best.cp > 1:
        lines.append(f"cp divides sequences by {best.cp}: their activations would not fit or cost more otherwise.")
    if best.recompute != "none":
        lines.append(
            f"Activations are computed again ({best.recompute}), which takes {AGAIN[best.recompute]:.0%} more time."
        )
    if devices > node and mb_s is None:
        lines.append(f"The speed between machines is assumed: {ACROSS_MB_S:.0f} MB/s. Measure it: shoal pool check")
    return tuple(lines)


def _memory(given: int | str | None) -> int:
    if isinstance(given, str):
        return parse_size(given, "memory")
    if given is not None:
        return given
    import torch

    if not torch.cuda.is_available():
        raise UsageError("This machine has no GPU to read the memory of.", hint='Pass memory="80GB".')
    return int(torch.cuda.get_device_properties(0).total_memory)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
