"""Models without memory for their weights, which get them when they are sharded: block by block, or from safetensors files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from shoal.core.errors import UsageError
from shoal.sdk.parallel.names import plain_name
from shoal.sdk.saving.rng import derived_seed, keep_cpu, seed_cpu
from shoal.sdk.saving.safetensors import read_index
from shoal.sdk.saving.shards import Shards, marker_of

_SOURCES: Any = WeakIdKeyDictionary()
"""Model → folder or file with its weights, from `read_weights` until `prepare`."""


@contextlib.contextmanager
def empty_model() -> Iterator[None]:
    """Let models that are made inside have parameters without memory. Buffers are made as usual.

    `run.prepare` makes the parameters on each worker: with `parallel="fsdp"` one block at a time, of which only the worker's
    part stays. They get the weights that `shoal.read_weights` named, else those of the model's `_init_weights(module)`.

    Example::

        with shoal.empty_model():
            model = AutoModelForCausalLM.from_config(config)
        shoal.read_weights(model, "llama-8b/")
        model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters()))
    """
    kind: Any = nn.Module
    register = kind.register_parameter
    made: Any = WeakIdKeyDictionary()

    def register_empty(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and not param.is_meta:
            if param not in made:
                made[param] = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            module._parameters[name] = made[param]

    kind.register_parameter = register_empty
    try:
        yield
    finally:
        kind.register_parameter = register


def read_weights(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Give a model the weights in safetensors files; of an empty model, `run.prepare` reads them.

    Each worker reads the parts that it holds, straight from the files.

    Args:
        model: The model, before `run.prepare`.
        path: A .safetensors file, or a folder with `model.safetensors` or `model.safetensors.index.json`.

    Raises:
        UsageError: The files lack a weight of the model, or one has another shape.

    Example: `shoal.read_weights(model, "llama-8b/")`
    """
    source = Path(path)
    read_index(source)
    if is_empty(model):
        _SOURCES[model] = source
    else:
        fill_from_files(model, source)


def is_empty(model: nn.Module) -> bool:
    """Check whether a parameter of the model has no memory yet."""
    return any(param.is_meta for param in model.parameters())


class Filling:
    """Makes the parameters of an empty model, some modules at a time, the same on every rank.

    Args:
        model: The model.
        seed: Seed of the initial weights. They depend on it and on the names of the modules only.
    """

    def __init__(self, model: nn.Module, seed: int):
        self._model, self._seed = model, seed
        self.source: Path | None = _SOURCES.pop(model, None)
        self._made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
        self._names = {id(module): name for name, module in model.named_modules()}
        lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
        if lost:
            raise UsageError(
                f"The buffer {lost[0]} of {type(model).__name__} has no memory: its contents are lost.",
                hint="Make the model inside `with shoal.empty_model():`, not on the meta device.",
            )
        if self.source is None and not callable(getattr(model, "_init_weights", None)):
            raise UsageError(
                f"{type(model).__name__} was made without memory, and nothing says what its weights are.",
                hint="Call shoal.read_weights(model, PATH), or give the model a method _init_weights(module).",
            )

    def fill(self, modules: Iterable[nn.Module]) -> None:
        """Make the whole parameters of these modules, on the CPU."""
        modules = list(modules)
        for module in modules:
            for name, param in module._parameters.items():
                if param is not None and param.is_meta:
                    if id(param) not in self._made:
                        self._made[id(param)] = (param, self._make(param))
                    module._parameters[name] = self._made[id(param)][1]
        if self.source is None:
            self._initialize(modules)

    def read(self) -> None:
        """Read the weights into the parameters, or into the parts of them that this rank holds."""
        if self.source is not None:
            fill_from_files(self._model, self.source)

    def _make(self, param: nn.Parameter) -> nn.Parameter:
        # Memory that is read from files later is not touched here: no page of it is ever used.
        value = (
            torch.empty_like(param, device="cpu") if self.source else torch.full_like(param, torch.nan, device="cpu")
        )
        return nn.Parameter(value, requires_grad=param.requires_grad)

    def _initialize(self, modules: list[nn.Module]) -> None:
        done = {id(param): param._version for param in self._model.parameters() if hasattr(param, "device_mesh")}
        put_back = keep_cpu()
        try:
            for module in reversed(modules):
                seed_cpu(derived_seed(self._seed, "weights", self._names[id(module)]))
                reset = getattr(module, "reset_parameters", None)
                if callable(reset) and any(param is not None for param in module._parameters.values()):
                    reset()
                self._model._init_weights(module)  # type: ignore[operator]
        finally:
            put_back()
        for name, param in self._model.named_parameters():
            if done.get(id(param), param._version) != param._version:
                raise UsageError(
                    f"_init_weights of {type(self._model).__name__} sets {name}, which is sharded already."
                )
        for module in modules:
            for short, value in module._parameters.items():
                if value is not None and not hasattr(value, "device_mesh") and bool(value.isnan().any()):
                    where = f"{self._names[id(module)]}.{short}".lstrip(".")
                    raise UsageError(
                        f"_init_weights of {type(self._model).__name__} leaves {where} without a value.",
                        hint="Set it there, or call shoal.read_weights(model, PATH).",
                    )


def fill_from_files(model: nn.Module, path: Path) -> None:
    """Read a model's weights, or the parts of them that it holds. Raise UsageError if one is missing or has another shape."""
    folder, index = read_index(path)
    shards = Shards(folder, index)
    prefix = f"{getattr(model, 'base_model_prefix', None) or 'model'}."
    state = model.state_dict()
    first: dict[int, str] = {}
    missing: list[str] = []
    tied: dict[str, str] = {}
    for name, param in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(param), name) != name:
            tied[name] = first[id(param)]
    read: set[str] = set()
    with torch.no_grad():
        for name, tensor in state.items():
            plain = plain_name(name)
            known = next((n for n in (plain, plain.removeprefix(prefix)) if n in index["tensors"]), None)
            if known is None:
                missing += [name] if name not in tied and isinstance(tensor, torch.Tensor) else []
                continue
            try:
                shards.fill(marker_of(known), tensor)
            except ValueError as error:
                raise UsageError(f"The weights in {path} do not fit {type(model).__name__}: {error}.") from error
            read.add(name)
    buffers = dict(model.named_buffers())
    seconds = {tied[name] for name in read if name in tied}
    lacking = [name for name in missing if name not in buffers and name not in seconds]
    if lacking:
        raise UsageError(f"{path} has no weights for {', '.join(lacking[:3])} of {type(model).__name__}.")
