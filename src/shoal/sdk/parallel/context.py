"""Context parallelism: the processes of a group compute the repeated blocks on consecutive parts of each sequence.

The model's own code runs on whole sequences before and after the blocks. The first block takes this process's part of its
input, and the last one puts the parts together. Inside, only attention looks at other parts: its keys and values are gathered.
"""

# Why the gradients are right: every process computes the same loss from the same output. The backward pass of the last block
# keeps this process's part of the gradient, multiplied by the size of the group. So the gradient of each parameter is, on
# average over the group, the whole one, for those in the blocks (a sum of parts, multiplied) as for those outside (the same on
# all, or parts of it behind the input of the first block). The processes of a group are part of the mesh that shards the
# parameters, which averages over them.

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_unflatten

from shoal.core.errors import UsageError
from shoal.sdk.parallel.blocks import block_lists

logger = logging.getLogger(__name__)
_SAME = 2e-2
"""Largest difference, relative to the largest value, between a block on parts and on whole sequences (bf16 rounds to 0.8 %)."""


class ContextParallel:
    """Splits the sequences in the largest list of repeated blocks of one model."""

    def __init__(self, group: dist.ProcessGroup, model: nn.Module):
        lists = block_lists(model)
        if not lists:
            raise UsageError(
                f"{type(model).__name__} has no list of repeated blocks in which sequences could be split.",
                hint="Put its blocks into an nn.ModuleList, or leave cp out of the mesh.",
            )
        self._group, self._kind = group, type(lists[0][0]).__name__
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._length = 0
        """Length of this process's part while the blocks run on parts; 0 while they run on whole sequences."""
        self._whole = 0
        self._is_checked = self._warned = False
        self._attention = Attention(group)
        for module in (module for block in lists[0] for module in block.modules()):
            if isinstance(module, nn.MultiheadAttention):
                self._attention.adapt(module)
            if isinstance(module, nn.TransformerEncoderLayer):
                # Its shortcut for inference passes by the attention module; it is not taken if there are hooks.
                module.register_forward_pre_hook(lambda *_: None)
        last = len(lists[0]) - 1
        for number, block in enumerate(lists[0]):
            block.forward = self._wrapped(block, block.forward, is_first=number == 0, is_last=number == last)

    def _wrapped(self, block: nn.Module, forward: Any, *, is_first: bool, is_last: bool) -> Callable[..., Any]:
        @functools.wraps(forward)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_first:
                self._begin(args, kwargs)
            if not self._length:
                return forward(*args, **kwargs)
            given = _map(lambda leaf: None if _is_cache(leaf) else leaf, (args, kwargs))
            parts = self._split(given, is_first=is_first)
            with self._attention.over(self._whole):
                output = forward(*parts[0], **parts[1])
            if is_first and not self._is_checked:
                self._check(block, forward, given, parts)
            if not is_last:
                return output
            leaves, shape = tree_flatten(output)
            first = next(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() >= 3)
            leaves[first] = _Join.apply(leaves[first], self._group)  # type: ignore[no-untyped-call]
            return tree_unflatten(leaves, shape)

        return call

    def _begin(self, args: Any, kwargs: Any) -> None:
        """Decide at the first block whether this batch is split."""
        leaves = tree_flatten((args, kwargs), _is_cache)[0]
        hidden = _hidden(leaves)
        self._whole = 0 if hidden is None else hidden.shape[1]
        self._length = self._whole // self._size
        # A cache of keys and values for generating text must be whole; that of a training step is never read.
        keeps = not torch.is_grad_enabled() and any(map(_is_cache, leaves))
        if not self._length or keeps:
            self._length = 0
        elif self._whole % self._size:
            self._length = 0
            if not self._warned:
                self._warned = True
                logger.warning(
                    "shoal: sequences of %d cannot be split among %d workers, so each computes all of them; pad them to a "
                    "multiple of cp",
                    self._whole,
                    self._size,
                )

    def _split(self, given: Any, *, is_first: bool) -> Any:
        """Return the arguments of a block with this process's part of everything that has a place for each token."""
        hidden = _hidden(tree_flatten(given)[0])

        def part(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or (value is hidden and not is_first):
                return value
            dim = 1 if value is hidden else self._dim_of(value)
            return value if dim is None else value.narrow(dim, self._rank * self._length, self._length)

        return _map(part, given)

    def _dim_of(self, value: torch.Tensor) -> int | None:
        """Return the dimension of tokens in a mask or table of positions; None if there is none."""
        sizes = list(value.shape)
        whole_numbers = not value.is_floating_point() and value.dtype != torch.bool
        if whole_numbers and sizes and sizes[-1] == self._whole:
            return value.dim() - 1
        if len(sizes) >= 2 and sizes[-2] == self._whole:
            return value.dim() - 2
        return None

    def _check(self, block: nn.Module, forward: Any, given: Any, parts: Any) -> None:
        """Compare the first block on parts and on whole sequences, once. Raise UsageError if it computes something else."""
        self._is_checked = True
        if not self._attention.calls:
            raise UsageError(
                f"{self._kind} does not compute its attention by torch.nn.functional.scaled_dot_product_attention, so its "
                "sequences cannot be split.",
                hint='Use that function (Hugging Face: attn_implementation="sdpa"), or leave cp out of the mesh.',
            )
        modes = [(module, module.training) for module in block.modules()]
        block.eval()
        try:
            with torch.no_grad():
                whole = _hidden(tree_flatten(forward(*given[0], **given[1]))[0])
                with self._attention.over(self._whole):
                    mine = _hidden(tree_flatten(forward(*parts[0], **parts[1]))[0])
        finally:
            for module, mode in modes:
                module.training = mode
        differs = True
        if whole is not None and mine is not None and whole.shape[1] == self._whole and mine.shape[1] == self._length:
            wanted = whole.narrow(1, self._rank * self._length, self._length)
            differs = not bool((wanted - mine).abs().max() <= _SAME * whole.abs().max())
        box = torch.tensor([differs], dtype=torch.int32, device=parts_device(parts))
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self._group)
        if box.item():
            raise UsageError(
                f"{self._kind} computes something else on a part of a sequence than on all of it.",
                hint="Positions and masks must come to the block as arguments, not be made in it; or leave cp out of the mesh.",
            )


class Attention:
    """Lets attention see the keys and values of all parts, while it is active.

    Blocks call `scaled_dot_product_attention` of torch.nn.functional, which is replaced for that time, or a
    `nn.MultiheadAttention`, which gets whole keys and values.
    """

    def __init__(self, group: dist.ProcessGroup):
        self._group, self._size = group, dist.get_world_size(group)
        self._whole = 0
        self.calls = 0

    @contextlib.contextmanager
    def over(self, whole: int) -> Iterator[None]:
        """Be active for sequences of this length."""
        module: Any = functional
        plain = module.scaled_dot_product_attention
        self._whole, before = whole, self._whole
        module.scaled_dot_product_attention = functools.partial(self._attend, plain)
        try:
            yield
        finally:
            module.scaled_dot_product_attention, self._whole = plain, before

    def adapt(self, module: nn.MultiheadAttention) -> None:
        """Let the module attend to whole sequences. Its own checks of shapes need them."""
        forward = module.forward

        @functools.wraps(forward)
        def call(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if self._whole and key.shape[1] * self._size == self._whole:
                self.calls += 1
                key, value = (_gather(key, 1, self._group),) * 2 if key is value else (
                    _gather(key, 1, self._group), _gather(value, 1, self._group))  # fmt: skip
            return forward(query, key, value, *args, **kwargs)

        if not module.batch_first:
            raise UsageError("cp needs nn.MultiheadAttention with batch_first=True.")
        module.forward = call  # type: ignore[method-assign]

    def _attend(self, plain: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
                is_causal: bool = False, **more: Any) -> Any:  # fmt: skip
        self.calls += 1
        length = query.shape[-2]
        if key.shape[-2] * self._size == self._whole:
            key, value = _gather(key, -2, self._group), _gather(value, -2, self._group)
        if is_causal:
            first = dist.get_rank(self._group) * length
            rows = torch.arange(first, first + length, device=query.device)[:, None]
            attn_mask = torch.arange(key.shape[-2], device=query.device)[None] <= rows
        return plain(query, key, value, attn_mask, dropout_p, False, **more)


def _is_cache(value: Any) -> bool:
    """Check whether a value is a cache of keys and values, as of Hugging Face models."""
    return hasattr(value, "get_seq_length")


def _map(change: Callable[[Any], Any], nest: Any) -> Any:
    leaves, shape = tree_flatten(nest, _is_cache)
    return tree_unflatten([change(leaf) for leaf in leaves], shape)


def parts_device(parts: Any) -> torch.device:
    """Return the device of the first tensor of a nest."""
    return next(leaf.device for leaf in tree_flatten(parts)[0] if isinstance(leaf, torch.Tensor))


def _hidden(leaves: list[Any]) -> Any:
    """Return the first tensor with a batch, a sequence and a width; None if there is none."""
    found = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() == 3 and leaf.is_floating_point())
    return next(found, None)


class _Join(torch.autograd.Function):
    """Output of the last block, put together from all parts along the sequence."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.at, ctx.length, ctx.size = dist.get_rank(group) * x.shape[1], x.shape[1], dist.get_world_size(group)
        return _gathered(x, 1, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient.narrow(1, ctx.at, ctx.length) * ctx.size, None


class _Gather(torch.autograd.Function):
    """Keys or values of all parts. The gradient of this process's part is the sum over the queries of all."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group, ctx.dim, ctx.length = group, dim, x.shape[dim]
        return _gathered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        whole = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=ctx.group)
        return whole.narrow(ctx.dim, dist.get_rank(ctx.group) * ctx.length, ctx.length), None, None


def _gather(x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    whole: torch.Tensor = _Gather.apply(x, dim, group)  # type: ignore[no-untyped-call]
    return whole


def _gathered(x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> torch.Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)
