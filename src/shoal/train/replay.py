"""A failed step once more, in one process: `shoal replay` runs the script with SHOAL_REPLAY set, and Trainer.fit comes here.

Nothing is trained, saved or sent. The exception comes again as it came (exit code 1), or it does not (exit code 0).
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

from shoal.agent.bugs import ABOUT
from shoal.core.errors import NotFound, UsageError
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
"""A file to write the outcome to, for the command that started us."""


def run_again(trainer: Any, directory: Path) -> NoReturn:
    """Call train_batch with the batch, the weights and the random numbers of the capsule; then backward."""
    about = read_about(directory)
    given = current()
    # Of the script's making, or one that leaves nothing behind.
    with nullcontext(given) if given is not None else init("replay", resume="never", checkpoint_every_s=None) as run:
        trainer.run = run
        batch = _prepare(trainer, directory, about)
        _say(f"Replaying step {about['step']} of rank {about['rank']}: {_words(about['error'])}")
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
    _say(f"It did not happen again: the loss is {loss:.6g}.")
    for problem in about.get("problems", []):
        _say(f"But the capsule is not complete: {problem}")
    raise SystemExit(0)


def read_about(directory: Path) -> dict[str, Any]:
    try:
        about = json.loads((directory / ABOUT).read_bytes())
    except FileNotFoundError:
        raise NotFound(f"{directory} is no capsule: there is no {ABOUT} in it", hint="shoal replay DIR") from None
    except ValueError as error:
        raise UsageError(f"{directory / ABOUT} cannot be read: {error}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UsageError(f"{directory / ABOUT} is of another version of Shoal", hint="install the one that wrote it")
    return about


def _prepare(trainer: Any, directory: Path, about: dict[str, Any]) -> Any:
    """Everything as it was before the step; the batch."""
    device = trainer.run.device
    trainer.model = trainer.model.to(device)
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
        _say(f"warning: {problem}. The step begins with the weights that the script makes.")
        return
    state = torch.load(path, map_location="cpu", weights_only=True)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UsageError(
            f"the model that the script makes is not the one of the capsule: {error}",
            hint="give the arguments of the run: shoal replay DIR -- ARGS",
        ) from error


def _read(path: Path, device: Any, about: dict[str, Any]) -> Any:
    if not path.is_file():
        problem = next((p for p in about.get("problems", []) if p.startswith("batch.pt")), "batch.pt is missing")
        raise UsageError(f"there is no batch to replay: {problem}")
    # A batch may hold objects of any class. Who replays runs the job's code anyway.
    return torch.load(path, map_location=device, weights_only=False)


def _set_state(trainer: Any, about: dict[str, Any]) -> None:
    """What train_batch may look at."""
    told = about.get("trainer", {})
    trainer.state.steps = int(about["step"]) - 1
    trainer.state.seen = int(told.get("seen") or 0)
    trainer.state.epoch = int(told.get("epoch") or 0)


@contextmanager
def _watched(model: Any, found: list[str]) -> Iterator[None]:
    """Finds the modules that make something not finite out of what was finite, in the order it happens."""
    handles = []

    def look(name: str, module: Any, given: Any, made: Any) -> None:
        if _is_finite(given) and not _is_finite(made):
            found.append(f"{name or 'the model'} ({type(module).__name__})")

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(lambda m, i, o, name=name: look(name, m, i, o)))
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
        _say("It happened again.")
    else:
        _say(f"Another exception than in the run: {type(error).__qualname__}: {error}")
    if culprits:
        _say(f"The first module whose result is not finite: {culprits[0]}")


def _debug(error: Exception, frame: FrameType | None) -> None:
    """Where it failed; for a loss that is not finite, train_batch as it was when it returned."""
    debugger = pdb.Pdb()
    debugger.reset()
    if isinstance(error, NonFiniteLoss) and frame is not None:
        _say("train_batch has returned; these are its variables at the end.")
        debugger.interaction(frame, None)
    else:
        debugger.interaction(None, error.__traceback__)


def _write_result(outcome: str, about: dict[str, Any], error: Exception | None = None) -> None:
    path = os.environ.get(RESULT)
    if path:
        told = None if error is None else {"type": type(error).__qualname__, "message": str(error)}
        Path(path).write_text(json.dumps({"outcome": outcome, "step": about["step"], "error": told}))


def _words(error: dict[str, Any]) -> str:
    return f"{error['type']}: {error['message']}"


def _say(text: str) -> None:
    print(f"shoal: {text}", file=sys.stderr, flush=True)
