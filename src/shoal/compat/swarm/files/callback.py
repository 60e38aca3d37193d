"""Peer's side of the monitor: reports progress in the DHT, and restores a backup when parameters are not finite."""

from __future__ import annotations

import copy
import logging
from importlib import import_module
from typing import Any

from shoal.compat.swarm.callback import HivemindTrainerCallback

__all__ = ["CollaborativeCallback"]

logger = logging.getLogger(__name__)
torch: Any = import_module("torch")
utils: Any = import_module("utils")


class CollaborativeCallback(HivemindTrainerCallback):
    """Callback for the Hugging Face Trainer, or for a custom loop with `on_step_end(loss=…)`."""

    def __init__(
        self,
        dht: Any,
        optimizer: Any,
        model: Any,
        local_public_key: bytes,
        statistics_expiration: float,
        backup_every_steps: int,
    ):
        super().__init__(dht, optimizer, local_public_key, statistics_expiration)
        self.model, self.backup_every_steps = model, backup_every_steps
        self.last_reported_collaboration_step = -1
        self.samples = self.steps = self.total_samples_processed = 0
        self.loss = 0.0
        self.latest_backup = self.backup_state()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.optimizer.load_state_from_peers()
        super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(
        self, args: Any = None, state: Any = None, control: Any = None, loss: float | None = None, **kwargs: Any
    ) -> Any:
        if control is not None:
            control.should_log = True
        if not self.params_are_finite():
            logger.warning("parameters are not finite: restoring those of step %d", self.latest_backup["step"])
            self.restore_from_backup(self.latest_backup)
            return control
        if loss is None and state is not None:
            loss = next((entry["loss"] for entry in reversed(state.log_history) if "loss" in entry), None)
        if loss is not None:
            self.loss, self.steps = self.loss + loss, self.steps + 1
            if self.optimizer.local_epoch != self.last_reported_collaboration_step:
                self.report()
        self.samples = self.optimizer.local_progress.samples_accumulated
        return control if state is None else super().on_step_end(args, state, control, **kwargs)

    def report(self) -> None:
        """Report the sums since the last report, once per step of the swarm."""
        step = self.last_reported_collaboration_step = self.optimizer.local_epoch
        self.total_samples_processed += self.samples
        speed = float(self.optimizer.local_progress.samples_per_second)
        logger.info(
            "Step #%d: %d samples contributed, %.1f samples/s, local loss %.5f",
            *(step, self.total_samples_processed, speed, self.loss / self.steps),
        )
        statistics = utils.LocalMetrics(
            step=step,
            samples_per_second=speed,
            samples_accumulated=self.samples,
            loss=self.loss,
            mini_steps=self.steps,
        )
        if step % self.backup_every_steps == 0:
            self.latest_backup = self.backup_state()
        self.loss, self.steps = 0.0, 0
        if self.optimizer.is_synchronized_with_peers():
            self.dht.store(
                key=self.optimizer.run_id + "_metrics",
                subkey=self.local_public_key,
                value=statistics.dict(),
                expiration_time=import_module("hivemind.utils").get_dht_time() + self.statistics_expiration,
                return_future=True,
            )

    def params_are_finite(self) -> bool:
        with torch.no_grad():
            return all(bool(torch.isfinite(parameter).all()) for parameter in self.model.parameters())

    def backup_state(self) -> dict[str, Any]:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy(state) | {"step": self.optimizer.local_epoch}

    def restore_from_backup(self, backup: dict[str, Any]) -> None:
        state = copy.deepcopy(backup)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
