"""Replay of a failed step in one process: `shoal replay` runs the script with SHOAL_REPLAY set, and Trainer.fit calls this.

Nothing is trained, saved or sent. If an exception is raised the exit code is 1, otherwise 0.
"""

from __future__ import annotations

import json
import math
import os
import pdb
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from shoal.agent.data.bug_capsules import ABOUT
from shoal.core.errors import NotFound, UsageError
from shoal.sdk.parallel.names import fitted
from shoal.sdk.parallel.placed import moved
from shoal.sdk.saving.rng import set_rng_state
from shoal.sdk.start import current, init
from shoal.train.batch import read_result, to_device
from shoal.train.bug import FORMAT, NonFiniteLoss
from shoal.train.frames import frame_at_return
from shoal.train.precision import Precision

torch: Any = import_module("torch")

VARIABLE = "SHOAL_REPLAY"
PDB = "SHOAL_REPLAY_PDB"
RESULT = "SHOAL_REPLAY_RESULT"
"""Variable with the file to write the outcome to, for the command that started this process."""


def run_again(trainer: Any, directory: Path) -> NoReturn:
    """Call train_batch, then backward, with the batch, weights and random state of a capsule."""
    about = read_about(directory)
    given = current()
    # The script's own run, or a new one that saves nothing.
    with nullcontext(given) if given is not None else init("replay", resume="never", checkpoint_every_s=None) as run:
        trainer.run = run
        batch = _prepare(trainer, directory, about)
        _print(f"Replaying step {about['step']} of rank {about['rank']}: {_words(about['error'])}")
        seen: list[FrameType | None] = []
        culprits: list[str] = []
        try:
            with _watched(trainer.model, culprits), torch.autograd.set_detect_anomaly(trainer.params.detect_anomaly):
                loss = _step(trainer, batch, seen)
        except Exception as error:
            _report(error, about, culprits)
            if os.environ.get(PDB):
                _debug(error, seen[-1] if seen else None)
            raise
    _write_result("not again", about)
    _print(f"It did not happen again: the loss is {loss:.6g}.")
    for problem in about.get("problems", []):
        _print(f"But the capsule is not complete: {problem}")
    raise SystemExit(0)


def read_about(directory: Path) -> dict[str, Any]:
    """Return the description of a capsule; raise NotFound or UsageError if it cannot be used."""
    try:
        about = json.loads((directory / ABOUT).read_bytes())
    except FileNotFoundError:
        raise NotFound(f"{directory} is not a capsule: it has no {ABOUT}", hint="shoal replay DIR") from None
    except ValueError as error:
        raise UsageError(f"{directory / ABOUT} cannot be read: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UsageError(f"{directory / ABOUT} was written by another version of Shoal", hint="install that version")
    return about


def _prepare(trainer: Any, directory: Path, about: dict[str, Any]) -> Any:
    """Restore the state before the step and return the batch."""
    device = trainer.run.device
    trainer.model = moved(trainer.model, device)
    trainer.model.train()
    _load(trainer.model, directory, about)
    _set_state(trainer, about)
    batch = to_device(_read(directory / "batch.pt", device, about), device)
    if (directory / "rng.pt").is_file():
        set_rng_state(torch.load(directory / "rng.pt", map_location="cpu", weights_only=True))
    return batch


def _step(trainer: Any, batch: Any, seen: list[FrameType | None]) -> float:
    precision = Precision(trainer.params.amp, trainer.run.device)
    with precision.forward():
        returned, frame = frame_at_return(lambda: trainer.train_batch(batch))
    seen.append(frame)
    result = read_result(returned)
    loss = float(result.loss.detach())
    if not math.isfinite(loss):
        raise NonFiniteLoss(f"the loss is {loss}")
    if result.loss.requires_grad:
        precision.backward(result.loss)
    return loss


def _load(model: Any, directory: Path, about: dict[str, Any]) -> None:
    path = directory / "model.pt"
    if not path.is_file():
        problem = next((p for p in about.get("problems", []) if p.startswith("model.pt")), "model.pt is missing")
        _print(f"warning: {problem}. The step uses the initial weights of the script's model.")
        return
    state = torch.load(path, map_location="cpu", weights_only=True)
    try:
        model.load_state_dict(fitted(state, model.state_dict()))
    except RuntimeError as error:
        raise UsageError(
            f"the script's model does not match the one in the capsule: {error}",
            hint="pass the arguments of the run: shoal replay DIR -- ARGS",
        ) from error


def _read(path: Path, device: Any, about: dict[str, Any]) -> Any:
    if not path.is_file():
        problem = next((p for p in about.get("problems", []) if p.startswith("batch.pt")), "batch.pt is missing")
        raise UsageError(f"there is no batch to replay: {problem}")
    # A batch may contain objects of any class. Unpickling is acceptable: a replay runs the job's code anyway.
    return torch.load(path, map_location=device, weights_only=False)


def _set_state(trainer: Any, about: dict[str, Any]) -> None:
    """Set the training state that train_batch may read."""
    saved = about.get("trainer", {})
    trainer.state.steps = int(about["step"]) - 1
    trainer.state.seen = int(saved.get("seen") or 0)
    trainer.state.epoch = int(saved.get("epoch") or 0)


@contextmanager
def _watched(model: Any, found: list[str]) -> Iterator[None]:
    """Collect the modules that turn finite inputs into outputs that are not finite, in order of execution."""
    handles = []

    def check(name: str, module: Any, given: Any, made: Any) -> None:
        if _is_finite(given) and not _is_finite(made):
            found.append(f"{name or 'the model'} ({type(module).__name__})")

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(lambda m, i, o, name=name: check(name, m, i, o)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_finite(value: Any) -> bool:
    tensors = [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


def _report(error: Exception, about: dict[str, Any], culprits: list[str]) -> None:
    first = about["error"]
    is_same = type(error).__qualname__ == first["type"]
    is_same = is_same and (isinstance(error, NonFiniteLoss) or str(error) == first["message"])
    _write_result("again" if is_same else "another", about, error)
    if is_same:
        _print("It happened again.")
    else:
        _print(f"A different exception than in the run: {type(error).__qualname__}: {error}")
    if culprits:
        _print(f"The first module whose result is not finite: {culprits[0]}")


def _debug(error: Exception, frame: FrameType | None) -> None:
    """Open the debugger where the step failed; for a loss that is not finite, at the end of train_batch."""
    debugger = pdb.Pdb()
    debugger.reset()
    if isinstance(error, NonFiniteLoss) and frame is not None:
        _print("train_batch has returned; these are its variables at the end.")
        debugger.interaction(frame, None)
    else:
        debugger.interaction(None, error.__traceback__)


def _write_result(outcome: str, about: dict[str, Any], error: Exception | None = None) -> None:
    path = os.environ.get(RESULT)
    if path:
        found = None if error is None else {"type": type(error).__qualname__, "message": str(error)}
        Path(path).write_text(json.dumps({"outcome": outcome, "step": about["step"], "error": found}))


def _words(error: dict[str, Any]) -> str:
    return f"{error['type']}: {error['message']}"


def _print(text: str) -> None:
    print(f"shoal: {text}", file=sys.stderr, flush=True)
