"""Both ends of a stage: tensors received before its first block, and sent before the first block of the next stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.core.errors import UsageError
from shoal.sdk.parallel.digest import digest
from shoal.sdk.parallel.pipeline.tree import Meta, flatten, portable, put_together
from shoal.sdk.parallel.pipeline.wire import Wire

NOT_A_CHAIN = (
    "The repeated blocks of this model do not feed one another in a row, so it cannot be cut into a pipeline.",
    'Use parallel="fsdp" for this model.',
)


Key = tuple[int, int]
"""Key that determines the shapes of activations: the kind of call, and the rows of the micro-batch."""


class StageDone(BaseException):
    """Raised when this stage's part of the forward is done. Not an Exception, so that a model does not catch it."""


@dataclass(slots=True)
class Passage:
    """One micro-batch in this stage."""

    key: Key
    entered: bool = False
    left: bool = False
    received: list[torch.Tensor] = field(default_factory=list)
    """Leaf tensors whose gradient is sent to the previous stage."""
    sent: list[torch.Tensor] = field(default_factory=list)
    """Tensors whose gradient the next stage will send back."""
    output: tuple[Any, list[Meta]] | None = None
    """Shape of the return value of this stage's last block."""
    before: tuple[int, int] | None = None
    """Identity and version of the previous block's input."""


@dataclass(slots=True)
class Inlet:
    """Description of the tensors that the previous stage sends for one kind of call."""

    stand_in: tuple[Any, list[Meta]] | None
    metas: list[Meta]
    digests: list[int]
    wanted: list[int] | None = None


class Boundary:
    def __init__(self, wire: Wire, blocks: range) -> None:
        self._wire, self._blocks = wire, blocks
        self._inlets: dict[Key, Inlet] = {}
        self._outlets: dict[Key, tuple[list[int], list[Meta]]] = {}

    def at_block(
        self, passage: Passage, index: int, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if index < self._blocks.start:
            return self._stand_in(passage, index, args, kwargs)
        if not passage.entered and not self._wire.is_first:
            args, kwargs = self._enter(passage, args, kwargs)
        passage.entered = True
        if index >= self._blocks.stop:
            self._send(passage, args, kwargs)
            raise StageDone
        output = call(*args, **kwargs)
        if index == self._blocks.stop - 1 and not self._wire.is_last and passage.key not in self._outlets:
            tensors: list[torch.Tensor] = []
            shape = portable(flatten(output, tensors))
            passage.output = (shape, [Meta.of(tensor) for tensor in tensors])
        return output

    def check(self, passage: Passage) -> None:
        """Raise UsageError if the forward did not enter and leave this stage."""
        if not self._wire.is_first and not passage.entered:
            raise UsageError("The model's forward never reached the blocks of this stage of the pipeline.")
        if not self._wire.is_last and not passage.left:
            raise UsageError("The model's forward never reached the blocks of the next stage of the pipeline.")

    def receive_gradients(self, passage: Passage) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        after = self._wire.stage + 1
        return [(tensor, self._wire.receive(Meta.of(tensor), after)) for tensor in passage.sent]

    def send_gradients(self, passage: Passage) -> None:
        for leaf in passage.received:
            self._wire.send(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, self._wire.stage - 1)
            leaf.grad = None

    def _inlet(self, key: Key) -> Inlet:
        if key not in self._inlets:
            stand_in, metas, digests = self._wire.receive_object(self._wire.stage - 1)
            self._inlets[key] = Inlet(stand_in, metas, digests)
        return self._inlets[key]

    def _stand_in(self, passage: Passage, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a stand-in for the output of an earlier stage's block: the right shape, full of NaN to expose any use."""
        given: list[torch.Tensor] = []
        flatten((args, kwargs), given)
        chain = _chain(given)
        if chain is not None:
            passage.before = (id(given[chain]), given[chain]._version)
        inlet = self._inlet(passage.key)
        if inlet.stand_in is None:
            return given[chain].detach().clone() if chain is not None else None
        shape, metas = inlet.stand_in
        # Only the last stand-in can be the tensor that is overwritten; the others need no memory.
        real = index == self._blocks.start - 1
        return put_together(shape, [_nothing(meta, self._wire.device, real) for meta in metas])

    def _enter(
        self, passage: Passage, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace arguments that were computed from stand-ins by the tensors that the previous stage sent."""
        inlet = self._inlet(passage.key)
        given: list[torch.Tensor] = []
        shape = flatten((args, kwargs), given)
        self._check_call(passage, inlet, given)
        if inlet.wanted is None:
            inlet.wanted = _wanted(inlet, given)
            self._wire.send_object(inlet.wanted, self._wire.stage - 1)
        for index in inlet.wanted:
            meta = inlet.metas[index]
            came = self._wire.receive(meta, self._wire.stage - 1)
            given[index] = _overwrite(given[index], came, meta.requires_grad)
            if meta.requires_grad:
                passage.received.append(given[index])
        found: tuple[tuple[Any, ...], dict[str, Any]] = put_together(shape, given)
        return found

    def _check_call(self, passage: Passage, inlet: Inlet, given: list[torch.Tensor]) -> None:
        chain = _chain(given)
        if chain is None or len(given) != len(inlet.metas):
            raise UsageError(NOT_A_CHAIN[0], hint=NOT_A_CHAIN[1])
        if passage.before == (id(given[chain]), given[chain]._version):
            # This block got the same input as the previous one: they are parallel branches, not a chain.
            raise UsageError(NOT_A_CHAIN[0], hint=NOT_A_CHAIN[1])
        if any(meta.requires_grad for meta in inlet.metas) and not torch.is_grad_enabled():
            raise UsageError(
                "Activation checkpointing with use_reentrant=True around the blocks does not work in a pipeline.",
                hint="Use use_reentrant=False (gradient_checkpointing_kwargs={'use_reentrant': False}).",
            )

    def _send(self, passage: Passage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors: list[torch.Tensor] = []
        flatten((args, kwargs), tensors)
        metas = [Meta.of(tensor) for tensor in tensors]
        after = self._wire.stage + 1
        if passage.key not in self._outlets:
            description = (passage.output, metas, [digest([tensor]) for tensor in tensors])
            self._wire.send_object(description, after)
            self._outlets[passage.key] = (self._wire.receive_object(after), metas)
        wanted, expected = self._outlets[passage.key]
        for index in wanted:
            if metas[index] != expected[index]:
                raise UsageError(
                    f"The input of a block changed from {expected[index]} to {metas[index]}, "
                    "although the inputs of the model have the same shapes.",
                    hint="In a pipeline, the shapes of activations may depend on the shape of the input only.",
                )
            self._wire.send(tensors[index], after)
            if metas[index].requires_grad:
                passage.sent.append(tensors[index])
        passage.left = True


def _chain(tensors: list[torch.Tensor]) -> int | None:
    """Return the index of the tensor that is passed from block to block: the first of a floating-point type."""
    return next((index for index, tensor in enumerate(tensors) if tensor.is_floating_point()), None)


def _wanted(inlet: Inlet, given: list[torch.Tensor]) -> list[int]:
    """Return the tensors of a block that the previous stage must send: those this stage cannot compute itself."""
    chain = _chain(given)
    return [
        index
        for index, (tensor, theirs) in enumerate(zip(given, inlet.digests, strict=True))
        if index == chain or digest([tensor]) != theirs
    ]


def _nothing(meta: Meta, device: torch.device, real: bool) -> torch.Tensor:
    fill = float("nan") if meta.dtype.is_floating_point else 0
    if real:
        return torch.full(meta.shape, fill, dtype=meta.dtype, device=device)
    return torch.full((), fill, dtype=meta.dtype, device=device).expand(meta.shape)


def _overwrite(tensor: torch.Tensor, came: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Put the received data into `tensor` itself if possible: forwards like `x = x + block(x)` keep using that object."""
    same = tensor.shape == came.shape and tensor.dtype == came.dtype and tensor.device == came.device
    if same and not tensor._is_view() and not (tensor.is_leaf and tensor.requires_grad):
        tensor.detach_()
        tensor.data = came
        came = tensor
    return came.requires_grad_(requires_grad)
