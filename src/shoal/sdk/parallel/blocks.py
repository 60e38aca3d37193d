"""Find the repeated blocks of a model and divide them among stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

MIN_COVER = 0.5
"""Minimum share of the parameters in a list of equal blocks; below it, another chain with more of them is preferred."""


def block_lists(model: nn.Module) -> list[list[nn.Module]]:
    """Return every outermost list of two or more blocks of one class, largest first."""
    lists = [blocks for blocks in _lists(model) if len({type(block) for block in blocks}) == 1]
    below = {id(module) for blocks in lists for block in blocks for module in block.modules() if module is not block}
    return sorted((blocks for blocks in lists if id(blocks[0]) not in below), key=_total, reverse=True)


def pipeline_blocks(model: nn.Module, at_least: int) -> list[nn.Module]:
    """Return the chain of modules at which to cut a pipeline, in the order they run; [] if none is long enough."""
    equal = [blocks for blocks in block_lists(model) if len(blocks) >= at_least]
    if equal and _total(equal[0]) >= MIN_COVER * size(model):
        return equal[0]
    chains = [blocks for blocks in _lists(model) if len(blocks) >= at_least]
    return max([*equal[:1], *chains], key=_total, default=[])


def partition(weights: Sequence[int], parts: int) -> list[range]:
    """Cut a row of weights into `parts` consecutive, non-empty ranges whose heaviest is as light as possible."""
    count = len(weights)
    if not 0 < parts <= count:
        raise ValueError(f"{count} blocks cannot be cut into {parts} parts")
    prefix = [0]
    for weight in weights:
        prefix.append(prefix[-1] + weight)
    best = [[prefix[end] for end in range(count + 1)]]
    cuts: list[list[int]] = [[0] * (count + 1)]
    for part in range(1, parts):
        row, cut = [0] * (count + 1), [0] * (count + 1)
        for end in range(part + 1, count + 1):
            # Of equally good cuts take the latest: the last stage also computes the head.
            row[end], negative = min((max(best[-1][at], prefix[end] - prefix[at]), -at) for at in range(part, end))
            cut[end] = -negative
        best.append(row)
        cuts.append(cut)
    ranges, end = [], count
    for part in range(parts - 1, -1, -1):
        start = cuts[part][end] if part else 0
        ranges.append(range(start, end))
        end = start
    return ranges[::-1]


def size(module: nn.Module) -> int:
    """Return the number of parameter elements; shared ones count once."""
    return sum(param.numel() for param in module.parameters())


def _lists(model: nn.Module) -> Iterator[list[nn.Module]]:
    for module in model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            blocks = list(_flat(module))
            if len(blocks) >= 2 and len({id(block) for block in blocks}) == len(blocks):
                yield blocks


def _flat(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a list. Lists inside a list are never called themselves, so their modules are yielded."""
    for child in module._modules.values():
        if isinstance(child, nn.ModuleList):
            yield from _flat(child)
        elif child is not None:
            yield child


def _total(blocks: Sequence[nn.Module]) -> int:
    return sum(size(block) for block in blocks)
