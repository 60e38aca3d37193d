"""Adaptation of the current hivemind to scripts of 2023, with fixes for problems that they would run into."""

from __future__ import annotations

import logging
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from shoal.compat.swarm.membership import enter
from shoal.swarm.peer import keep_interrupt, tie_to_parent

logger = logging.getLogger(__name__)

_SUFFIX = "_state_averager"


def mend(hivemind: ModuleType) -> None:
    """Restore removed names and replace three classes. hivemind's own code keeps using the originals."""
    for home in ("hivemind.compression", "hivemind.p2p", "hivemind.utils"):
        module = import_module(home)
        for name in vars(module):
            if not name.startswith("_") and not hasattr(hivemind, name):
                setattr(hivemind, name, getattr(module, name))
    optim, optimizer, averager = map(
        import_module, ("hivemind.optim", "hivemind.optim.optimizer", "hivemind.optim.state_averager")
    )
    ours: Any = _optimizer(optimizer)
    for place in (hivemind, optim, optimizer):
        place.Optimizer = ours  # type: ignore[attr-defined]
    averager.TrainingStateAverager = _state_averager(averager)  # type: ignore[attr-defined]
    hivemind.DHT = _dht(import_module("shoal.swarm.processes"))  # type: ignore[attr-defined]
    _tie_to_parent(import_module("hivemind.averaging").DecentralizedAverager)


def _tie_to_parent(averager: Any) -> None:
    """Let averagers end with the script: after a SIGKILL they would keep answering in its name."""
    run = averager.run

    def run_tied(self: Any) -> None:
        tie_to_parent(self._parent_pid)
        run(self)

    averager.run = run_tied


def _dht(module: Any) -> Any:
    class DHT(module.OwnedDHT):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            enter(self)

    return DHT


def _optimizer(module: Any) -> Any:
    class Optimizer(module.Optimizer):  # type: ignore[misc]
        """hivemind's Optimizer without delayed averaging, which treats partial rounds as complete."""

        def __init__(self, *, averager_opts: dict[str, Any] | None = None, **options: Any) -> None:
            if options.get("delay_optimizer_step") or options.get("delay_grad_averaging"):
                logger.info("delay_optimizer_step and delay_grad_averaging are turned off: each round is waited for")
            options |= {"delay_optimizer_step": False, "delay_grad_averaging": False}
            opts = {"request_timeout": _patience(options.get("matchmaking_time")), **(averager_opts or {})}
            if not options.get("use_local_updates"):
                # hivemind passes averager_opts to only one of its two averagers.
                factory = options.get("grad_averager_factory") or module.GradientAverager
                options["grad_averager_factory"] = partial(factory, **opts)
            with keep_interrupt():
                super().__init__(averager_opts=opts, **options)
            enter(self)

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Load the state, also into the parameter copies of an offloaded optimizer, and drop accumulated gradients."""
            super().load_state_dict(state_dict)
            averager = self.state_averager
            if self.offload_optimizer:
                with averager.lock_averaged_tensors:
                    copies = (p for group in averager.optimizer.param_groups for p in group["params"])
                    for copy, parameter in zip(copies, averager.main_parameters, strict=True):
                        copy.data.copy_(parameter.data)
            if self.grad_averager is not None:
                self.grad_averager.reset_accumulated_grads_()
            self.tracker.report_local_progress(self.local_epoch, samples_accumulated=0)

    return Optimizer


def _patience(matchmaking_time: float | None) -> float:
    """Return a request timeout below the matchmaking time; with a longer one, peers block waiting for each other."""
    return 3.0 if matchmaking_time is None else min(3.0, 0.6 * matchmaking_time)


def _state_averager(module: Any) -> Any:
    # The class name is part of the calls between peers and must stay the same.
    class TrainingStateAverager(module.TrainingStateAverager):  # type: ignore[misc]
        """hivemind's averager under the trainers' prefix; the guide's monitor uses another one, where no peer answers."""

        def __init__(self, *, prefix: str, **options: Any) -> None:
            name = prefix if prefix.endswith(_SUFFIX) else prefix + _SUFFIX
            with keep_interrupt():
                super().__init__(prefix=name, **options)
            enter(self)

    return TrainingStateAverager
