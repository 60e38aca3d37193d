"""The two runs behind `shoal training verify-resume`: one stops at a step, the other is killed before it and resumed.

Run.step calls `after_step` once per global step, after the checkpoint and the sample log of that step were handled.
Events are printed to stderr, in lines that the command reads back from the logs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from shoal.core.errors import UsageError
from shoal.sdk.saving.layout import name_of

VARIABLE = "SHOAL_VERIFY"
MARK = "[shoal] verify-resume: "
PREPARED = "prepared"
"""Name of the event that describes how an attempt starts."""
_KEPT_WITHIN_S = 600.0
_POLL_S = 0.05


class Runner(Protocol):
    """The parts of Run that are used here."""

    @property
    def is_main(self) -> bool: ...
    @property
    def resumed(self) -> bool: ...
    def checkpoint(self, wait: bool = False) -> None: ...
    def finish(self) -> None: ...


class Iterations(Protocol):
    """The part of Training that is used here."""

    def at_iteration_end(self, action: Callable[[], None]) -> None: ...


class Verify:
    def __init__(self, *, stop_at: int, kill_at: int | None = None, kept: Path | None = None):
        """Set the steps at which to stop and to kill.

        Args:
            stop_at: Step at which the run ends.
            kill_at: Step at which rank 0 kills itself. None: the uninterrupted run, or the attempt after the kill.
            kept: File in which an agent lists the checkpoints that the server has.
        """
        self._stop_at, self._kill_at, self._kept = stop_at, kill_at, kept
        self._start_reported = self._prepared_reported = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Verify | None:
        """Return the Verify that the environment asks for, or None."""
        env = os.environ if env is None else env
        text = env.get(VARIABLE)
        if not text:
            return None
        try:
            asked = json.loads(text)
            kill_at = asked.get("kill_at") if env.get("SHOAL_ATTEMPT", "1") == "1" else None
            return cls(
                stop_at=int(asked["stop_at"]),
                kill_at=None if kill_at is None else int(kill_at),
                kept=Path(env["SHOAL_SPOOL"], "kept") if asked.get("captured") else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{VARIABLE}={text!r} in the environment is not valid") from None

    def before_prepare(self, run: Runner, objects: tuple[Any, ...]) -> None:
        """Report how this attempt starts: hashes of its random generators and of its initial weights."""
        if run.is_main and not self._prepared_reported:
            self._prepared_reported = True
            from shoal.sdk.compare import digest
            from shoal.sdk.saving.rng import DEVICES, rng_state

            generators = {
                name: digest(state) for name, state in rng_state().items() if name not in (*DEVICES, "current")
            }
            _report(run, PREPARED, 0, generators=generators, weights=_weights(objects))

    def after_step(self, run: Runner, training: Iterations | None, step: int) -> None:
        """Kill or end the run at the end of this iteration if this is the step for it."""
        if not self._start_reported:
            self._start_reported = True
            _report(run, "resumed" if run.resumed else "started", step - 1)
        ends = step >= self._stop_at
        if not ends and step != self._kill_at:
            return
        if training is None:
            _report(run, "unprepared", step)
            raise SystemExit(0)
        training.at_iteration_end(lambda: self._end(run, step) if ends else self._die(run, step))

    def _end(self, run: Runner, step: int) -> None:
        run.checkpoint(wait=True)
        _report(run, "stopped", step)
        run.finish()
        raise SystemExit(0)

    def _die(self, run: Runner, step: int) -> None:
        """Kill rank 0 without any cleanup, as in a crash."""
        run.checkpoint(wait=True)
        if run.is_main:
            self._wait_until_kept(name_of(step))
            _report(run, "killed", step)
            os.kill(os.getpid(), signal.SIGKILL)

    def _wait_until_kept(self, name: str) -> None:
        """Wait until the agent lists the checkpoint as kept; after the kill it has only seconds left to upload it."""
        deadline = time.monotonic() + _KEPT_WITHIN_S
        while self._kept is not None and time.monotonic() < deadline:
            if self._kept.exists() and name in self._kept.read_text().splitlines():
                return
            time.sleep(_POLL_S)


def _weights(objects: tuple[Any, ...]) -> str | None:
    """Return a hash of the models among these; None if there is none, or if a model is still on the meta device."""
    from shoal.sdk.compare import digest

    torch = import_module("torch")
    states = [o.state_dict() for o in objects if isinstance(o, torch.nn.Module)]
    tensors = [t for state in states for t in state.values() if isinstance(t, torch.Tensor)]
    return digest(tensors) if tensors and not any(t.is_meta for t in tensors) else None


def _report(run: Runner, event: str, step: int, **more: Any) -> None:
    if run.is_main:
        sys.stderr.write(f"{MARK}{json.dumps({'event': event, 'step': step, **more})}\n")
        sys.stderr.flush()
