"""`shoal.swarm.Optimizer`: an ordinary optimizer whose steps are made together with a swarm."""

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
    """Take part in a swarm in the way it trains: an object with `step`, `note`, `leave`, `round` and `global_step`."""
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
    """Where `shoal swarm join` has started the script, it starts it again when the way to the swarm is lost."""
    try:
        yield
    except Unreachable as error:
        if settings.peer is None:
            raise
        print(f"shoal: {error.message}", file=sys.stderr, flush=True)
        raise SystemExit(LOST_SWARM) from error


class Optimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """Wraps `inner` (an optimizer, or a function that makes one of parameters). Every peer gives the same model.

    >>> optimizer = shoal.swarm.Optimizer(model, inner=torch.optim.AdamW(model.parameters()), run_id="together",
    ...                                   target_batch_size=256, initial_peers=["/ip4/…/tcp/…/p2p/…"])
    >>> loss.backward(); optimizer.step(batch_size=32, loss=loss); optimizer.zero_grad()

    A scheduler is stepped by global step: do not step it yourself. Settings left out come from the ticket of
    `shoal swarm join`, if the script was started by it.
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
                "there is no swarm to take part in",
                hint="start it with: shoal swarm join LINK, or give run_id=…, target_batch_size=… and initial_peers=…",
            )
        self._settings = found
        self.swarm = join(found, model if isinstance(model, torch.nn.Module) else params, optimizer, scheduler)

    @property
    def param_groups(self) -> Any:
        return self._inner.param_groups

    @property
    def state(self) -> Any:
        return self._inner.state

    @property
    def defaults(self) -> Any:
        return self._inner.defaults

    def step(self, closure: Callable[[], Any] | None = None, *, batch_size: int | None = None, loss: Any = None) -> Any:
        """`batch_size`: samples behind the gradients, if not those given at first. `loss` is only shown."""
        samples = batch_size if batch_size is not None else self._batch_size
        if samples is None:
            raise UsageError("a swarm counts samples", hint="optimizer.step(batch_size=len(batch))")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with exits_when_lost(self._settings):
            self.swarm.step(self._inner.step, samples)
        if loss is not None:
            self.swarm.note(float(loss))
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._inner.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: Any) -> None:
        raise UsageError("parameters cannot be added to an optimizer that is in a swarm", hint="give them at first")

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self._inner.state_dict(), "swarm": self.swarm.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._inner.load_state_dict(state_dict["inner"])
        self.swarm.load_state_dict(state_dict["swarm"])

    def leave(self) -> None:
        """Tell the others and end all processes of the swarm; from now on steps are made alone."""
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
