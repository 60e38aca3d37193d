"""The model that all peers agree on, and the outer step that changes it once per round. No network here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shoal.core.errors import Refused
from shoal.swarm.averaging.codec import on_grid

if TYPE_CHECKING:
    from torch import Tensor

torch: Any = import_module("torch")

MODEL = "model/"
MOMENTUM = "outer/momentum/"


class Outer:
    """The agreed values ("anchor") as one flat CPU vector: first the trained parameters, then the float buffers."""

    def __init__(self, model: Any, *, lr: float, momentum: float, feeds_back: bool):
        self._lr, self._mu, self._feeds_back = lr, momentum, feeds_back
        trained, floats = _split(model)
        self._named = {**trained, **floats}
        self._sizes = [value.numel() for value in self._named.values()]
        self.trained = sum(value.numel() for value in trained.values())
        """Number of values in the vector that belong to trained parameters."""
        self._num_trained = len(trained)
        self.anchor: Any = self._read()
        self.velocity: Any = torch.zeros(self.trained)
        self.residual: Tensor = torch.zeros_like(self.anchor)
        """Rounding error not yet sent to the others; it is added to the next update."""

    def update(self) -> Tensor:
        """Return the change since the last round, rounded as it will be sent. `sent` then stores the rounding error."""
        whole: Tensor = self.anchor - self._read() + self.residual
        if not self._feeds_back:
            return whole
        sent = on_grid(whole)
        self._kept_back = whole - sent
        return sent

    def sent(self) -> None:
        """Keep the rounding error of the last `update`, because the others have received that update."""
        if self._feeds_back:
            self.residual = self._kept_back

    def apply(self, average: Tensor) -> None:
        """Make a Nesterov step along the averaged update and write the result into the model. Buffers take the average.

        The operations are separate on purpose: fused ones round differently on different processors, and all peers must get
        identical values.
        """
        along, apart = average[: self.trained], average[self.trained :]
        self.velocity = self.velocity * self._mu + along
        moved = (self.velocity * self._mu + along) * self._lr
        self.anchor = self.anchor - torch.cat([moved, apart])
        self.write()

    def write(self) -> None:
        """Copy the agreed values into the model."""
        with torch.no_grad():
            for value, part in zip(self._named.values(), self.anchor.split(self._sizes), strict=True):
                value.copy_(part.view(value.shape))

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all tensors that a joining peer needs, by name."""
        parts = zip(self._named.items(), self.anchor.split(self._sizes), strict=True)
        found = {MODEL + name: part.clone().view(value.shape) for (name, value), part in parts}
        moved = zip(list(self._named.items())[: self._num_trained], self._split_trained(), strict=True)
        return found | {MOMENTUM + name: part.clone().view(value.shape) for (name, value), part in moved}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the `tensors()` of another peer, into the model as well; raise Refused and change nothing if they do not fit."""
        problem = self.misfit(tensors)
        if problem is not None:
            raise Refused(f"The state of the swarm does not fit this script's model: {problem}.")
        flat = [tensors[MODEL + name].to(torch.float32).flatten() for name in self._named]
        moved = [tensors[MOMENTUM + name].to(torch.float32).flatten() for name in self._trained_names()]
        self.anchor, self.velocity = torch.cat(flat), torch.cat(moved)
        self.residual = torch.zeros_like(self.anchor)
        self.write()

    def misfit(self, tensors: Mapping[str, Tensor]) -> str | None:
        """Return why the tensors are not a state of this model; None if they are."""
        wanted = {MODEL + name: value for name, value in self._named.items()}
        wanted |= {MOMENTUM + name: self._named[name] for name in self._trained_names()}
        for name, value in wanted.items():
            if name not in tensors:
                return f"{name} is missing"
            if tensors[name].shape != value.shape:
                return f"{name} has shape {list(tensors[name].shape)} there and {list(value.shape)} here"
            if not torch.isfinite(tensors[name]).all():
                return f"{name} has values that are not finite"
        return None

    @property
    def fingerprint(self) -> str:
        """Hash of parameter names and shapes. Peers with different ones train different models."""
        return fingerprint_of((name, value.shape) for name, value in self._named.items())

    def _read(self) -> Any:
        parts = [value.detach().to("cpu", torch.float32).flatten() for value in self._named.values()]
        return torch.cat(parts) if parts else torch.zeros(0)

    def _trained_names(self) -> list[str]:
        return list(self._named)[: self._num_trained]

    def _split_trained(self) -> Any:
        return self.velocity.split(self._sizes[: self._num_trained])


def fingerprint_of(shapes: Iterable[tuple[str, Any]]) -> str:
    """Return the hash of parameter names and shapes."""
    about = "\n".join(f"{name} {list(shape)}" for name, shape in shapes)
    return hashlib.blake2b(about.encode(), digest_size=16).hexdigest()


def _split(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the trained parameters and the float buffers by name; parameters of a list are named by their index.

    Integer buffers are left out: they count this peer's own steps, and the state must be equal on all peers.
    """
    if not isinstance(model, torch.nn.Module):
        params: Iterable[Any] = model
        return {str(i): p for i, p in enumerate(params) if p.requires_grad}, {}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    saved = model.state_dict()
    return trained, {name: b for name, b in model.named_buffers() if name in saved and b.is_floating_point()}
