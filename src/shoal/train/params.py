"""Parameters of a training: typed fields with defaults. Any field may have a Range of values to try.

class MyParams(Params):
    lr: float = Range([5e-4, 7e-4])
    hidden: int = 128

In a trial of a sweep, `MyParams()` has the values that the sweep has chosen.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, Self, get_type_hints

from shoal.core.errors import UsageError
from shoal.core.param_grid import axes
from shoal.sdk.trial import trial_params
from shoal.train.typed import fits, name_of

_is_copy = ContextVar("_is_copy", default=False)


class Range:
    """Values to try for a field.

    Args:
        values: The values, at least one.
        group: Ranges with the same group change together, value by value; all others are combined with each other.

    Example:
        >>> lr: float = Range([5e-4, 7e-4])
    """

    def __init__(self, values: Sequence[Any], *, group: str | None = None):
        self.values = list(values)
        self.group = group
        if not self.values:
            raise UsageError("a Range needs at least one value", hint="Range([1e-4, 3e-4])")

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Range({self.values!r})" if self.group is None else f"Range({self.values!r}, group={self.group!r})"


class Params:
    """Parameters of a training. Fields are annotated class attributes; values are checked against their types when set.

    Args:
        **given: Values of fields, by name. In a trial of a sweep, the sweep's values take precedence.

    Raises UsageError for unknown names, wrong types and missing values.

    Example:
        >>> class MyParams(Params):
        ...     hidden: int = 128
        >>> params = MyParams(lr=3e-4, epochs=2, hidden=256)
    """

    seed: int | None = 0
    """Random seed of everything; None leaves the generators as they are."""
    deterministic: bool = False
    """Use deterministic algorithms only; slower. An operator that has none raises an error that names it."""
    optimizer: str = "AdamW"
    """Class of torch.optim, or "LAMB"."""
    lr: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    """Maximum norm of the gradient; None: no clipping."""
    amp: Literal["none", "bf16", "fp16"] = "none"
    """Mixed precision: "none", "bf16", or "fp16" with a scaled loss."""
    accumulate: int = 1
    """Batches per worker in one step."""
    batch_size: int = 16
    """Samples per batch and worker."""
    epochs: float | None = None
    """Epochs to train. Give this or max_steps."""
    max_steps: int | None = None
    """Steps to train. Give this or epochs."""
    train_samples: int | None = None
    """Samples of one epoch; needed if the training data has no known length."""
    eval_every_samples: int | None = None
    """Samples between two evaluations; None: after every epoch."""
    warmup: float = 0.0
    """Share of the training during which the learning rate rises."""
    decay: Literal["linear", "stepwise", "cosine", "none"] = "linear"
    ending_lr_ratio: float = 1e-5
    """Final learning rate as a share of the full one, for linear and cosine decay."""
    stepwise_ratio: float = 0.1
    stepwise_epochs: int = 30
    train_files: list[str] | tuple[str, ...] | str = ()
    eval_file: str = ""
    test_files: list[str] | tuple[str, ...] | str = ()
    keep_models: int = 3
    """Number of newest models to keep, besides the best."""
    initial_model: str | None = None
    """File or checkpoint directory with the weights to start from."""
    true_gradient: bool = False
    """Weight every sample equally, even if the batches of workers or accumulation steps differ in size."""
    detect_anomaly: bool = False
    """Use torch.autograd's anomaly mode, which is slow and names the operation that produced a NaN."""
    num_workers: int | None = None
    """Data-loading processes per worker; None: two for a dataset whose batches are seen to take time to load, else none."""
    ema: float = 0.0
    """Decay of the weight average that evaluation uses; 0: no average."""
    patience: int | None = None
    """Evaluations without improvement after which training stops; None: never stop early."""
    parallel: Literal["auto", "ddp", "fsdp", "pipeline", "none"] = "auto"
    """Strategy that distributes the model over several workers."""
    mesh: dict[str, int] | None = None
    """Sizes of a combination of strategies, such as {"fsdp": 4, "tp": 2}, as in shoal.init."""
    trackers: tuple[str, ...] = ()
    """Additional destinations of metrics: "tensorboard", "wandb", "mlflow"."""
    max_model_size: int | None = None
    """Maximum number of model parameters. Larger variants of a search are skipped."""

    _hints: ClassVar[dict[str, Any]]

    def __init__(self, **given: Any):
        given = {**given, **self._chosen()}
        for name in self.fields():
            if name not in given and not hasattr(type(self), name):
                raise UsageError(f"{type(self).__name__} needs a value for {name}")
            object.__setattr__(self, name, copy.deepcopy(getattr(type(self), name, None)))
        for name, value in given.items():
            setattr(self, name, value)
        for name in self.fields():
            self._check(name, getattr(self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.fields():
            near = difflib.get_close_matches(name, self.fields(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"annotate it in {type(self).__name__}, e.g. {name}: int = 1"
            raise UsageError(f"{type(self).__name__} has no field {name}", hint=hint)
        self._check(name, value)
        object.__setattr__(self, name, value)

    @classmethod
    def fields(cls) -> dict[str, Any]:
        """Return name → type of all fields, those of base classes first."""
        if "_hints" not in cls.__dict__:
            hints = get_type_hints(cls)
            named = [n for kind in reversed(cls.__mro__[:-1]) for n in inspect.get_annotations(kind)]
            cls._hints = {n: hints[n] for n in dict.fromkeys(named) if not n.startswith("_")}
        return cls._hints

    @classmethod
    def _chosen(cls) -> dict[str, Any]:
        """Return the values that a sweep has chosen for this process."""
        chosen = {} if _is_copy.get() else trial_params()
        for name in chosen.keys() - cls.fields().keys():
            if near := difflib.get_close_matches(name, cls.fields(), n=1):
                warn = f"shoal: the sweep sets {name}, which is not a field of {cls.__name__}; did you mean {near[0]}?"
                print(warn, file=sys.stderr)
        return {n: _restored(v, cls.fields()[n]) for n, v in chosen.items() if n in cls.fields()}

    def _check(self, name: str, value: Any) -> None:
        hint = self.fields()[name]
        for one in value.values if isinstance(value, Range) else [value]:
            if not fits(one, hint):
                raise UsageError(f"{name} is {one!r} ({type(one).__name__}), and should be {name_of(hint)}")

    @property
    def ranges(self) -> dict[str, Range]:
        """Fields that have a Range, by name."""
        return {n: v for n in self.fields() if isinstance(v := getattr(self, n), Range)}

    def variants(self) -> Iterator[Self]:
        """Yield every combination of the Ranges' values as Params without Range.

        The first field changes slowest, groups fastest.

        Example:
            >>> for variant in MyParams(lr=Range([1e-3, 1e-4])).variants():
            ...     print(variant.lr)
        """
        for chosen in itertools.product(*axes((name, r.values, r.group) for name, r in self.ranges.items())):
            yield self.replace(**{name: value for part in chosen for name, value in part.items()})

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed.

        Example:
            >>> slower = params.replace(lr=params.lr / 10)
        """
        with _copying():
            return type(self)(**{**{n: copy.deepcopy(getattr(self, n)) for n in self.fields()}, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {n: _plain(getattr(self, n)) for n in self.fields()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return Params from the result of `to_dict`. Values of a sweep are not applied."""
        with _copying():
            return cls(**{n: _restored(v, cls.fields().get(n)) for n, v in values.items()})

    def problems(self) -> list[str]:
        """Return all reasons not to start, one clause each. Subclasses may add their own."""
        found = []
        if (self.epochs is None) == (self.max_steps is None):
            found.append("give exactly one of epochs and max_steps")
        for name in ("epochs", "max_steps", "lr", "batch_size", "accumulate", "keep_models"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Range) and value <= 0:
                found.append(f"{name} is {value}, and should be above 0")
        for name in ("warmup", "ending_lr_ratio", "ema"):
            value = getattr(self, name)
            if not isinstance(value, Range) and not 0 <= value <= 1:
                found.append(f"{name} is {value}, and should be between 0 and 1")
        return found

    def check(self) -> None:
        """Raise UsageError with all `problems`, if there are any."""
        if found := self.problems():
            raise UsageError(f"{type(self).__name__}: {'; '.join(found)}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in self.fields())})"


@contextmanager
def _copying() -> Iterator[None]:
    """Ignore the values of a sweep inside this context, because parameters are copied."""
    before = _is_copy.set(True)
    try:
        yield
    finally:
        _is_copy.reset(before)


def _plain(value: Any) -> Any:
    if isinstance(value, Range):
        return {"range": [_plain(v) for v in value.values], **({"group": value.group} if value.group else {})}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    try:
        json.dumps(value)
    except TypeError:
        return str(value)
    return value


def _restored(value: Any, hint: Any) -> Any:
    if isinstance(value, dict) and set(value) in ({"range"}, {"range", "group"}):
        return Range([_restored(v, hint) for v in value["range"]], group=value.get("group"))
    if isinstance(value, list) and hint is not None and not fits(value, hint):
        return tuple(value)
    return value
