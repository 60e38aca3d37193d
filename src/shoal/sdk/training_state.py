"""The objects of a training (models, optimizers, schedulers, loaders): their state to files and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from shoal.core.errors import Refused, UsageError
from shoal.sdk.samples.loader import is_loader, keeps_state
from shoal.sdk.samples.sampler import Feed
from shoal.sdk.saving.configs import hugging_face_files
from shoal.sdk.saving.plain import from_plain, to_plain
from shoal.sdk.saving.saver import late_storages
from shoal.sdk.saving.shards import Shards, Split, split

torch: Any = import_module("torch")


@dataclass(slots=True)
class TrainingState:
    """Objects of a training, in the order they were given, over all calls of prepare."""

    models: list[Any] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """Index of the model that each optimizer belongs to."""
    schedulers: list[Any] = field(default_factory=list)
    """Schedulers and all other objects that are only saved and restored."""
    scalers: list[Any] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)

    def has(self, value: Any) -> bool:
        known = (*self.models, *self.optimizers, *self.schedulers, *self.scalers, *self.loaders)
        return any(value is other for other in known)

    def files(self, parallel: Any) -> tuple[dict[str, Any], set[int]] | None:
        """Return the model and optimizer files with live tensors, and the storages that only a step changes.

        Returns None if no rank holds the whole state (sharded models).
        """
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

    def sharded(self, parallel: Any, *, is_main: bool) -> Split | None:
        """Return the state of sharded models, with this rank's parts of the live tensors; None if they are not sharded."""
        states: list[Any] = []
        files: dict[str, Any] = {}
        tied: dict[str, dict[str, str]] = {}
        for number, model in enumerate(self.models):
            live = parallel.sharded_state(model, self._of(number))
            if live is None:
                return None
            files[model_file(number)], of_optimizers, tied[model_file(number)] = live
            states += of_optimizers
        return split({**files, "optimizer.pt": self._in_order(states)}, tied, is_main=is_main) if files else None

    def whole_files(self, parallel: Any) -> dict[str, Any]:
        """Gather copies of the model and optimizer files from all ranks to rank 0; {} on the others. Collective."""
        states: list[Any] = []
        files: dict[str, Any] = {}
        for number, model in enumerate(self.models):
            full = parallel.full_state(model, self._of(number))
            if full is not None:
                files[model_file(number)] = full[0]
                states += full[1]
        return {**files, "optimizer.pt": self._in_order(states)} if files else {}

    def small(self, left_out: Callable[[str], None]) -> dict[str, Any]:
        """Return the states of schedulers, scalers and loader positions as plain types."""
        return {
            "schedulers": [to_plain(s.state_dict(), left_out, type(s).__name__) for s in self.schedulers],
            "scalers": [to_plain(s.state_dict(), left_out, type(s).__name__) for s in self.scalers],
            "loaders": [
                feed.state() | ({"stream": to_plain(loader.state_dict(), left_out)} if keeps_state(loader) else {})
                for loader, feed in zip(self.loaders, self.feeds, strict=True)
            ],
        }

    def configs(self, parallel: Any) -> dict[str, dict[str, str]]:
        """Return the configuration files of the Hugging Face models, by model file."""
        found = {model_file(i): hugging_face_files(parallel.unwrap(model)) for i, model in enumerate(self.models)}
        return {name: files for name, files in found.items() if files}

    def load_big(self, parallel: Any, read: Callable[[str], Any], shards: Shards | None = None) -> None:
        """Load all models, and the optimizers known so far. Collective.

        Args:
            parallel: Parallelism of the models.
            read: Returns a file of the checkpoint, or None. Each is read when it is needed, and nothing of it is kept here.
            shards: Reader of a sharded checkpoint, whose files have markers; each rank reads only what it holds.
        """
        states = (read("optimizer.pt") or []) if self.optimizers else []
        for number, model in enumerate(self.models):
            weights = read(model_file(number))
            if weights is None:
                raise Refused(f"The checkpoint holds {number} models; this script has more.")
            mine = [i for i, owner in enumerate(self.owners) if owner == number and i < len(states)]
            optimizers = [self.optimizers[i] for i in mine]
            try:
                if shards is not None:
                    parallel.load_shards(model, optimizers, weights, [states[i] for i in mine], shards)
                else:
                    parallel.load(model, optimizers, weights, [states[i] for i in mine])
            except (RuntimeError, ValueError, KeyError) as error:
                raise Refused(
                    f"The checkpoint does not fit this script's model or optimizer: {error}",
                    hint='Pass resume="never" to shoal.init to start from the beginning.',
                ) from error

    def load_small(self, saved: dict[str, Any], since: Mapping[str, int]) -> None:
        """Load schedulers and scalers, beginning at the indices in `since`; remove what was loaded from `saved`."""
        for optimizer in self.optimizers:
            # Schedulers warn if the optimizer made no step before theirs; it did, before the resume.
            optimizer._opt_called = True
        for kind, objects in (("schedulers", self.schedulers), ("scalers", self.scalers)):
            for number in range(since[kind], min(len(objects), len(saved[kind]))):
                state, saved[kind][number] = saved[kind][number], None  # averages of weights are large
                objects[number].load_state_dict(from_plain(state))

    def _of(self, model: int) -> list[Any]:
        return [o for o, owner in zip(self.optimizers, self.owners, strict=True) if owner == model]

    def _in_order(self, states: list[Any]) -> list[Any]:
        """Return states that are grouped by model in the order in which the optimizers were given."""
        order = [i for number in range(len(self.models)) for i, owner in enumerate(self.owners) if owner == number]
        return [state for _, state in sorted(zip(order, states, strict=False), key=lambda pair: pair[0])]


def kind_of(value: Any) -> str:
    """Return the name of the list of TrainingState that an object belongs to."""
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
        "run.prepare takes models, optimizers, DataLoaders, schedulers, GradScalers and other objects with state_dict and "
        f"load_state_dict, not a {type(value).__name__}."
    )


def model_file(number: int) -> str:
    return "model.pt" if number == 0 else f"model-{number}.pt"


def owner_of(optimizer: Any, parameters: list[set[int]]) -> int:
    """Return the index of the model whose parameters (their ids, by model) the optimizer holds; 0 if none matches."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return next((i for i, of_model in enumerate(parameters) if of_model & held), 0)
