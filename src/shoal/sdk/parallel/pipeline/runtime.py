"""Runtime of one stage: it runs the model's own forward on each micro-batch and enters and leaves it at the stage's blocks.

There is no tracing. Every stage runs the Python code of the whole model, so that masks, positions and other values that the
forward computes are available. Blocks of earlier stages return a stand-in (NaN, never read). The first block of this stage
gets the input that the previous stage sent. At the first block of the next stage, the input is sent on and the forward is
left. All micro-batches go forward, then all go backward: the script computes its loss between the two.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch

from shoal.core.errors import UsageError
from shoal.sdk.parallel.pipeline.batch import Joint, Pieces
from shoal.sdk.parallel.pipeline.boundary import Boundary, Passage, StageDone
from shoal.sdk.parallel.pipeline.gradients import Gradients
from shoal.sdk.parallel.pipeline.state import Ownership
from shoal.sdk.parallel.pipeline.tree import Meta, outline, portable, put_together
from shoal.sdk.parallel.pipeline.wire import Wire

Call = Callable[..., Any]


class Runtime:
    def __init__(self, wire: Wire, blocks: range, num_microbatches: int, gradients: Gradients, shifted: bool) -> None:
        self.blocks = blocks
        """Indices of the blocks of this stage."""
        self.gradients = gradients
        self.ownership: Ownership | None = None
        self._wire, self._count, self._shifted = wire, num_microbatches, shifted
        self._boundary = Boundary(wire, blocks)
        self._outputs: dict[int, tuple[Any, list[Meta]]] = {}
        self._passage: Passage | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Runtime:
        # A copy of the model (for example an average of its weights) runs on the same stages.
        return self

    def at_block(self, index: int, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Handle the call of a block of the chain."""
        if self._passage is not None:
            return self._boundary.at_block(self._passage, index, call, args, kwargs)
        if index in self.blocks:
            # Activation checkpointing computes the block again during backward.
            return call(*args, **kwargs)
        raise UsageError(f"Block {index} is on another stage of the pipeline and cannot be called by itself.")

    def forward(self, call: Call, flags: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model on every micro-batch and return the output of the last stage, on every stage."""
        pieces = Pieces(args, kwargs, self._count)
        key = self._key(pieces, flags)
        self._agree(key)
        passages, outputs = [], []
        for index in range(len(pieces)):
            passage, output = self._run(call, key, pieces, index)
            passages.append(passage)
            outputs.append(output)
        self._wire.finish()
        joint = None
        if self._wire.is_last:
            joint = Joint(outputs, pieces.sizes, pieces.weights(self._shifted))
        return self._give_out(key, joint, passages)

    def backward(self, passages: list[Passage], joint: Joint | None, gradients: list[torch.Tensor | None]) -> None:
        """Run backward for all micro-batches of this stage, last first, from the gradients of the output."""
        self.gradients.before_backward()
        while passages:
            passage = passages.pop()
            if joint is not None:
                parts = joint.gradients(len(passages), gradients)
                pairs = list(zip(joint.parts[len(passages)], parts, strict=True))
            else:
                pairs = self._boundary.receive_gradients(passage)
            roots = [(tensor, gradient) for tensor, gradient in pairs if gradient is not None and tensor.requires_grad]
            if roots:
                torch.autograd.backward([tensor for tensor, _ in roots], [gradient for _, gradient in roots])
            self._boundary.send_gradients(passage)
        self._wire.finish()
        self.gradients.after_backward()

    def _run(self, call: Call, key: int, pieces: Pieces, index: int) -> tuple[Passage, Any]:
        args, kwargs = pieces.arguments(index)
        # Micro-batches may differ by one row.
        passage = self._passage = Passage((key, pieces.sizes[index]))
        output = None
        try:
            output = call(*args, **kwargs)
        except StageDone:
            pass
        finally:
            self._passage = None
        self._boundary.check(passage)
        return passage, output

    def _key(self, pieces: Pieces, flags: tuple[Any, ...]) -> int:
        """Return a checksum of everything that determines the shapes of activations; equal on all stages of one call."""
        metas = [(tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad) for tensor in pieces.tensors]
        device = self._wire.device.type
        cast = (torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
        facts = (metas, outline(pieces.shape), torch.is_grad_enabled(), cast, flags)
        return zlib.crc32(repr(facts).encode())

    def _agree(self, key: int) -> None:
        """Raise UsageError if the stages got different batches; otherwise they would wait for each other for ever."""
        wire = self._wire
        if not wire.is_first and wire.receive_number(wire.stage - 1) != key:
            raise UsageError(
                "The stages of the pipeline were called with different inputs.",
                hint="All stages of one pipeline must read the same batches: pass the loader to run.prepare too.",
            )
        if not wire.is_last:
            wire.send_number(key, wire.stage + 1)

    def _give_out(self, key: int, joint: Joint | None, passages: list[Passage]) -> Any:
        if key not in self._outputs:
            description = None
            if joint is not None:
                pairs = zip(joint.tensors, joint.requires_grad, strict=True)
                metas = [Meta(tuple(tensor.shape), tensor.dtype, grad) for tensor, grad in pairs]
                description = (portable(joint.shape), metas)
            self._outputs[key] = self._wire.broadcast_object(description)
        shape, metas = self._outputs[key]
        if joint is not None:
            if [meta.shape for meta in metas] != [tuple(tensor.shape) for tensor in joint.tensors]:
                raise UsageError("The shape of the model's output changed although the shape of its input did not.")
            shape = joint.shape
        tensors = joint.tensors if joint is not None else [meta.empty(self._wire.device) for meta in metas]
        tensors = [self._wire.share(tensor) for tensor in tensors]
        if torch.is_grad_enabled() and any(meta.requires_grad for meta in metas):
            anchor = torch.zeros((), requires_grad=True)
            wanted = [meta.requires_grad for meta in metas]
            tensors = list(_Outputs.apply(anchor, self, passages, joint, wanted, *tensors))  # type: ignore[no-untyped-call]
        return put_together(shape, tensors)


class _Outputs(torch.autograd.Function):
    """Autograd function between the script's graph and those of the stages. Only the last stage's gradients count."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        runtime: Runtime,
        passages: list[Passage],
        joint: Joint | None,
        wanted: list[bool],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.stage = (runtime, passages, joint)
        outputs = tuple(tensor.view_as(tensor) for tensor in tensors)
        ctx.mark_non_differentiable(*(out for out, want in zip(outputs, wanted, strict=True) if not want))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, ...]:
        runtime, passages, joint = ctx.stage
        if not passages:
            raise RuntimeError("backward was called twice on the output of one pipeline call.")
        runtime.backward(passages, joint, list(gradients))
        return (None,) * (len(gradients) + 5)
