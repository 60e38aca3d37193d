"""`shoal.swarm.Optimizer`, an optimizer that trains a model together with the other peers of a swarm."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from shoal.core.errors import Unreachable, UsageError
from shoal.core.swarm import LOST_SWARM
from shoal.swarm.peer import load_hivemind
from shoal.swarm.settings import Settings, gather_settings

torch: Any = import_module("torch")


def join(settings: Settings, model: Any, optimizer: Any, scheduler: Any = None) -> Any:
    """Join a swarm and return this peer's part in it: `Rounds` or `LargeBatch`, depending on `settings.mode`.

    Both have `step`, `note`, `leave`, `round` and `global_step`. The peer leaves the swarm when the process exits.

    Args:
        settings: Settings of the swarm.
        model: A module, or a list of parameters.
        optimizer: The local optimizer of these parameters.
        scheduler: A learning-rate scheduler of the optimizer. It is stepped by global step.

    Example:
        >>> swarm = join(Settings(run_id="reef", target_batch_size=256), model, optimizer)
        >>> swarm.step(optimizer.step, samples=32)
    """
    load_hivemind()
    with exits_when_lost(settings):
        if settings.mode == "large-batch":
            made = import_module("shoal.swarm.large_batch").LargeBatch(settings, optimizer, scheduler)
        else:
            made = import_module("shoal.swarm.rounds").Rounds(settings, model, scheduler, optimizer=optimizer)
    _leave_at_exit(made)
    return made


@contextmanager
def exits_when_lost(settings: Settings) -> Iterator[None]:
    """Exit with LOST_SWARM when the swarm is unreachable and `shoal swarm join` started the script: it starts it again."""
    try:
        yield
    except Unreachable as error:
        if settings.peer is None:
            raise
        print(f"shoal: {error.message}", file=sys.stderr, flush=True)
        raise SystemExit(LOST_SWARM) from error


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Optimizer whose steps are shared with a swarm. All peers must use the same model.

    Args:
        model: A module, or an iterable of parameters.
        inner: The local optimizer, or a function that makes one from a list of parameters.
        scheduler: A learning-rate scheduler, or a function that makes one from the optimizer. It is stepped by global step:
            do not step it yourself.
        batch_size: Samples per step, if `step` is called without `batch_size`.
        **settings: Fields of `shoal.swarm.Settings`. Fields left out come from the ticket of `shoal swarm join`, if it
            started the script.

    Raises UsageError if there are neither settings nor a ticket.

    Example:
        >>> optimizer = shoal.swarm.Optimizer(model, inner=torch.optim.AdamW(model.parameters()), run_id="together",
        ...                                   target_batch_size=256, initial_peers=["/ip4/…/tcp/…/p2p/…"])
        >>> loss.backward(); optimizer.step(batch_size=32, loss=loss); optimizer.zero_grad()
    """

    def __init__(
        self, model: Any, *, inner: Any, scheduler: Any = None, batch_size: int | None = None, **settings: Any
    ):
        params = list(model.parameters() if isinstance(model, torch.nn.Module) else model)
        optimizer = inner(params) if callable(inner) and not isinstance(inner, torch.optim.Optimizer) else inner
        if scheduler is not None and not hasattr(scheduler, "state_dict"):
            scheduler = scheduler(optimizer)
        self._inner, self._batch_size = optimizer, batch_size
        self._scheduler = scheduler
        found = gather_settings(settings)
        if found is None:
            raise UsageError(
                "no swarm is configured",
                hint="start the script with: shoal swarm join LINK, or pass run_id=…, target_batch_size=… and initial_peers=…",
            )
        self._settings = found
        self.swarm = join(found, model if isinstance(model, torch.nn.Module) else params, optimizer, scheduler)

    @property
    def param_groups(self) -> Any:
        """Parameter groups of the inner optimizer."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:
        """State of the inner optimizer."""
        return self._inner.state

    @property
    def defaults(self) -> Any:
        """Defaults of the inner optimizer."""
        return self._inner.defaults

    def step(self, closure: Callable[[], Any] | None = None, *, batch_size: int | None = None, loss: Any = None) -> Any:
        """Make one step together with the swarm and return the loss.

        Args:
            closure: A function that computes the loss and its gradients, as in torch.
            batch_size: Samples behind the gradients; by default the `batch_size` of the constructor.
            loss: The step's loss. It is used for statistics only.

        Example:
            >>> loss.backward()
            >>> optimizer.step(batch_size=len(batch), loss=loss)
        """
        samples = batch_size if batch_size is not None else self._batch_size
        if samples is None:
            raise UsageError(
                "the batch size is unknown, and a swarm counts samples", hint="optimizer.step(batch_size=len(batch))"
            )
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with exits_when_lost(self._settings):
            self.swarm.step(self._inner.step, samples)
        if loss is not None:
            self.swarm.note(float(loss))
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients, as in torch."""
        self._inner.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: Any) -> None:
        """Raise UsageError: the parameters of a swarm are fixed when it is joined."""
        raise UsageError(
            "parameters cannot be added to an optimizer that is in a swarm",
            hint="pass all parameters when you create shoal.swarm.Optimizer",
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner optimizer and of the swarm, for a checkpoint."""
        return {"inner": self._inner.state_dict(), "swarm": self.swarm.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned. The swarm's part is ignored if the swarm is already further."""
        self._inner.load_state_dict(state_dict["inner"])
        self.swarm.load_state_dict(state_dict["swarm"])

    def leave(self) -> None:
        """Announce that this peer leaves and end all its swarm processes. Later steps are local.

        Example:
            >>> optimizer.leave()
            >>> torch.save(model.state_dict(), "model.pt")
        """
        self.swarm.leave()

    def __repr__(self) -> str:
        return f"shoal.swarm.Optimizer({self._inner!r})"


def _leave_at_exit(made: Any) -> None:
    ours = weakref.ref(made)

    def leave() -> None:
        swarm = ours()
        if swarm is not None:
            swarm.leave()

    atexit.register(leave)
