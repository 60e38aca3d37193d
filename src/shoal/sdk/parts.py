"""What a training consists of, its state as files, and back from files into the objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from shoal.core.errors import Refused, UsageError
from shoal.sdk.loader import is_loader, keeps_state
from shoal.sdk.sampler import Feed
from shoal.sdk.saving.plain import from_plain, to_plain
from shoal.sdk.saving.saver import late_storages

torch: Any = import_module("torch")


@dataclass(slots=True)
class Parts:
    """In the order they were given, over all calls of prepare."""

    models: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """For each optimizer the model it belongs to."""
    schedulers: list[Any] = field(default_factory=list)
    """And whatever else is only saved and restored."""
    scalers: list[Any] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)

    def has(self, value: Any) -> bool:
        known = (*self.models, *self.optimizers, *self.schedulers, *self.scalers, *self.loaders)
        return any(value is other for other in known)

    def files(self, parallel: Any) -> tuple[dict[str, Any], set[int]] | None:
        """Model and optimizer files with live tensors, and the storages only a step changes; None if no rank holds all."""
        states: list[Any] = []
        files: dict[str, Any] = {}
        for number, model in enumerate(self.models):
            live = parallel.live_state(model, self._of(number))
            if live is None:
                return None
            files[model_file(number)] = live[0]
            states += live[1]
        files["optimizer.pt"] = self._in_order(states)
        return files, late_storages(self.models, states)

    def whole_files(self, parallel: Any) -> dict[str, Any]:
        """Collective. The same as copies on rank 0, gathered from all ranks; empty elsewhere."""
        states: list[Any] = []
        files: dict[str, Any] = {}
        for number, model in enumerate(self.models):
            full = parallel.full_state(model, self._of(number))
            if full is not None:
                files[model_file(number)] = full[0]
                states += full[1]
        return {**files, "optimizer.pt": self._in_order(states)} if files else {}

    def small(self, left_out: Callable[[str], None]) -> dict[str, Any]:
        """Schedulers, scalers and positions, as plain types."""
        return {
            "schedulers": [to_plain(s.state_dict(), left_out, type(s).__name__) for s in self.schedulers],
            "scalers": [to_plain(s.state_dict(), left_out, type(s).__name__) for s in self.scalers],
            "loaders": [
                feed.state() | ({"stream": to_plain(loader.state_dict(), left_out)} if keeps_state(loader) else {})
                for loader, feed in zip(self.loaders, self.feeds, strict=True)
            ],
        }

    def load_big(self, parallel: Any, saved: Mapping[str, Any]) -> None:
        """Collective. Models and the optimizers known so far."""
        states = saved.get("optimizer.pt", [])
        for number, model in enumerate(self.models):
            if model_file(number) not in saved:
                raise Refused(f"The checkpoint holds {_count(saved)} models; this script has more of them.")
            mine = [i for i, owner in enumerate(self.owners) if owner == number and i < len(states)]
            optimizers = [self.optimizers[i] for i in mine]
            try:
                parallel.load(model, optimizers, saved[model_file(number)], [states[i] for i in mine])
            except (RuntimeError, ValueError, KeyError) as error:
                raise Refused(
                    f"The checkpoint does not fit this script's model or optimizer: {error}",
                    hint='Give resume="never" to start from the beginning.',
                ) from error

    def load_small(self, saved: Mapping[str, Any], since: Mapping[str, int]) -> None:
        """Schedulers and scalers added since those counts."""
        for optimizer in self.optimizers:
            # Schedulers warn where no step was made before theirs; it was, before the resume.
            optimizer._opt_called = True
        for kind, objects in (("schedulers", self.schedulers), ("scalers", self.scalers)):
            for number in range(since[kind], min(len(objects), len(saved[kind]))):
                objects[number].load_state_dict(from_plain(saved[kind][number]))

    def _of(self, model: int) -> list[Any]:
        return [o for o, owner in zip(self.optimizers, self.owners, strict=True) if owner == model]

    def _in_order(self, states: list[Any]) -> list[Any]:
        """States come grouped by model; the file has them in the order the optimizers were given."""
        order = [i for number in range(len(self.models)) for i, owner in enumerate(self.owners) if owner == number]
        return [state for _, state in sorted(zip(order, states, strict=False), key=lambda pair: pair[0])]


def kind_of(value: Any) -> str:
    """Which list of Parts an object belongs to."""
    if isinstance(value, torch.nn.Module):
        return "models"
    if isinstance(value, torch.optim.Optimizer):
        return "optimizers"
    if is_loader(value):
        return "loaders"
    if callable(getattr(value, "unscale_", None)) and callable(getattr(value, "update", None)):
        return "scalers"
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return "schedulers"
    raise UsageError(
        "run.prepare takes a model, optimizers, DataLoaders, and schedulers, GradScalers or whatever else has a state_dict "
        f"and a load_state_dict, not a {type(value).__name__}."
    )


def model_file(number: int) -> str:
    return "model.pt" if number == 0 else f"model-{number}.pt"


def owner_of(optimizer: Any, parameters: list[set[int]]) -> int:
    """The model whose parameters (their ids, by model) it holds; the first where none does."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return next((i for i, of_model in enumerate(parameters) if of_model & held), 0)


def _count(saved: Mapping[str, Any]) -> int:
    return sum(name.startswith("model") for name in saved)
