"""Cut a batch into micro-batches and join their outputs. No communication here."""

from __future__ import annotations

from typing import Any

import torch

from shoal.core.errors import UsageError
from shoal.sdk.parallel.pipeline.tree import Branch, Slot, flatten, put_together

IGNORED_LABEL = -100
"""Label that Hugging Face losses exclude from their mean."""


MAIN_INPUTS = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values", "labels")


class Pieces:
    """Micro-batches of one call."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> None:
        self.tensors: list[torch.Tensor] = []
        self.shape = flatten((args, kwargs), self.tensors)
        rows = _rows(kwargs, self.tensors) if not args else _rows({}, self.tensors)
        count = max(1, min(count, rows))
        self.sizes = [rows // count + (index < rows % count) for index in range(count)]
        self._cut = [
            torch.split(tensor, self.sizes) if tensor.dim() > 0 and len(tensor) == rows else (tensor,) * count
            for tensor in self.tensors
        ]
        self._kwargs = kwargs

    def __len__(self) -> int:
        return len(self.sizes)

    def arguments(self, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = put_together(self.shape, [cut[index] for cut in self._cut])
        return args, kwargs

    def weights(self, shifted: bool) -> list[float]:
        """Return the weight of each micro-batch's loss: its share of the rows, or of the labels that the loss uses.

        `shifted`: the model predicts the next token, so the loss does not use the first label of a row.
        """
        if self._kwargs.get("num_items_in_batch") is not None:
            # The model itself divides by the count of the whole batch: the parts must be summed.
            return [1.0] * len(self.sizes)
        counts = [float(size) for size in self.sizes]
        labels = self._kwargs.get("labels")
        if isinstance(labels, torch.Tensor) and not labels.is_floating_point() and len(labels) == sum(self.sizes):
            kept = (labels[:, 1:] if shifted and labels.dim() > 1 else labels) != IGNORED_LABEL
            counts = torch.stack([part.sum() for part in torch.split(kept, self.sizes)]).tolist()
        total = sum(counts)
        return [count / total for count in counts] if total else [1.0 / len(counts)] * len(counts)


class Joint:
    """Output of the whole batch, joined from those of the micro-batches; splits its gradients on the way back."""

    def __init__(self, outputs: list[Any], sizes: list[int], weights: list[float]) -> None:
        self.parts: list[list[torch.Tensor]] = []
        for output in outputs:
            tensors: list[torch.Tensor] = []
            self.shape = flatten(output, tensors)
            self.parts.append(tensors)
        self._sizes, self._weights = sizes, weights
        columns = list(zip(*self.parts, strict=True))
        self._ways = [self._join_rule(index, column) for index, column in enumerate(columns)]
        self.tensors = [self._join(way, column) for way, column in zip(self._ways, columns, strict=True)]
        self.requires_grad = [any(part.requires_grad for part in column) for column in columns]

    def gradients(self, index: int, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the gradients of micro-batch `index`, from those of the joined outputs."""
        found: list[torch.Tensor | None] = []
        for way, part, gradient in zip(self._ways, self.parts[index], gradients, strict=True):
            if gradient is None or not part.requires_grad:
                found.append(None)
            elif way == "mean":
                found.append(gradient * self._weights[index])
            elif way == "rows":
                start = sum(len(parts[len(found)]) for parts in self.parts[:index])
                found.append(gradient[start : start + len(part)])
            else:
                found.append(gradient)
        return found

    def _join_rule(self, index: int, column: tuple[torch.Tensor, ...]) -> str:
        if len(column) == 1:
            return "only"
        if all(part.dim() == 0 for part in column):
            return "mean"
        per_row = len(column[0]) // self._sizes[0] if column[0].dim() else 0
        if per_row and all(len(part) == size * per_row for part, size in zip(column, self._sizes, strict=True)):
            return "rows"
        shapes = ", ".join(str(tuple(part.shape)) for part in column)
        raise UsageError(
            f"The outputs of the micro-batches for {_place(self.shape, index) or 'the output'} cannot be joined: {shapes}.",
            hint="Outputs of a pipeline must have the batch as first dimension or be single numbers; "
            'mesh={"num_microbatches": 1} avoids joining.',
        )

    def _join(self, way: str, column: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if way == "only":
            return column[0].detach()
        if way == "rows":
            return torch.cat([part.detach() for part in column])
        weighted = [part.detach() * weight for part, weight in zip(column, self._weights, strict=True)]
        return torch.stack(weighted).sum(0).to(column[0].dtype if column[0].is_floating_point() else torch.float32)


def _rows(named: dict[str, Any], tensors: list[torch.Tensor]) -> int:
    """Return the rows of the batch: those of a main input if there is one by name, else of the first tensor."""
    main = [named[name] for name in MAIN_INPUTS if isinstance(named.get(name), torch.Tensor)]
    return next((len(tensor) for tensor in [*main, *tensors] if tensor.dim() > 0), 1)


def _place(shape: Any, index: int, path: str = "") -> str | None:
    if isinstance(shape, Slot):
        return path if shape.index == index else None
    if isinstance(shape, Branch):
        for number, item in enumerate(shape.items):
            key = shape.keys[number] if shape.keys is not None else number
            found = _place(item, index, f"{path}[{key!r}]")
            if found is not None:
                return found
    return None
