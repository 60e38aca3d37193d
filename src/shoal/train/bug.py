"""Bug capsules: everything needed to replay a failed step, in a directory next to the checkpoints.

`Capsules.save` is called while the exception is handled. It never raises, so that the original failure is reported.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from shoal.agent.data.bug_capsules import ABOUT, capsules_in, step_and_rank
from shoal.core.errors import ShoalError
from shoal.sdk.saving import layout
from shoal.sdk.saving.rng import packed, set_rng_state
from shoal.train.frames import failing_frame, frame_at_return, keepable, own_copy, short_texts
from shoal.train.gradients import non_finite

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)

FORMAT = 1
KEPT = 5
"""Number of newest capsules kept per worker."""
_OF_A_PEER = re.compile(
    r"gloo/transport|Connection (closed|reset) by peer|NCCL|Broken pipe|Socket Timeout|wait timeout"
)
_MOST_TENSORS = 50
_AGAIN_S = 30.0
"""Seconds that a second call of train_batch may take."""

Generators = tuple[Any, Any, Any, Any]
"""Random state, as returned by sdk.saving.rng.raw_rng_state."""


class NonFiniteLoss(ShoalError):
    """The loss is not a finite number."""

    code: ClassVar[str] = "non_finite_loss"
    exit_code: ClassVar[int] = 1


class Capsules:
    """Capsules of one worker below `directory`."""

    def __init__(self, directory: Path, rank: int):
        self._directory, self._rank = directory, rank

    def save(
        self,
        error: BaseException,
        *,
        batch: Any,
        model: Any,
        rng: Generators,
        about: Mapping[str, Any],
        trainer: Any = None,
    ) -> Path | None:
        """Write a capsule and return its path; None if another worker has failed first or it cannot be written.

        Args:
            error: The failure.
            batch: The batch of the step.
            model: The model without wrapper.
            rng: The random state right before train_batch.
            about: Description of the step, with at least `step` and `seen`.
            trainer: The trainer. A loss that is not finite is found only after train_batch has returned; it is then called
                again to capture its variables.
        """
        if is_of_a_peer(error):
            return None
        name = f"step-{int(about['step']):09d}-rank-{self._rank}"
        partial = self._directory / f".tmp-{name}"
        try:
            layout.discard(partial)
            partial.mkdir(parents=True)
            frame = _frame_of(error, trainer, batch, model, rng)
            known = _fill(partial, frame, batch, model, rng)
            known |= _describe(error, batch, model)
            known |= {"step": int(about["step"]), "rank": self._rank, "trainer": _plain(about)}
            (partial / ABOUT).write_text(json.dumps(known, indent=1, default=str) + "\n")
            path = self._directory / name
            layout.commit(partial, path)
            self._prune(path)
            self._announce(path, known)
            return path
        except Exception as problem:
            logger.warning("shoal: the capsule of the failed step could not be saved: %s", problem)
            layout.discard(partial)
            return None

    def _prune(self, newest: Path) -> None:
        mine = [p for p in capsules_in(self._directory) if step_and_rank(p)[1] == self._rank and p != newest]
        mine.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in mine[: max(0, len(mine) + 1 - KEPT)]:
            layout.discard(path)

    def _announce(self, path: Path, about: Mapping[str, Any]) -> None:
        from shoal.sdk.start import current

        error, run = about["error"], current()
        if run is not None:
            fields = {"error": error["type"], "text": error["message"][:2000], "where": about["where"].get("text", "")}
            run.note_bug(step=about["step"], seen=about["trainer"].get("seen"), name=path.name, **fields)
        job = os.environ.get("SHOAL_JOB_NAME") if "SHOAL_URL" in os.environ else None
        command = f"shoal training replay {job}" if job else f"shoal replay {_short(path)}"
        print(f"shoal: step {about['step']} failed; replay it with: {command}", file=sys.stderr, flush=True)


def is_of_a_peer(error: BaseException) -> bool:
    """Check whether an error only means that another worker has failed; that worker's capsule is the useful one."""
    kinds = [getattr(torch.distributed, n, None) for n in ("DistBackendError", "DistNetworkError", "DistStoreError")]
    if isinstance(error, tuple(k for k in kinds if k is not None)):
        return True
    return isinstance(error, RuntimeError) and bool(_OF_A_PEER.search(str(error)))


class _Files:
    """Files of a capsule. One that cannot be written does not affect the others."""

    def __init__(self, directory: Path):
        self._directory = directory
        self.written: dict[str, int] = {}
        self.problems: list[str] = []

    def write(self, name: str, make: Callable[[], Any]) -> None:
        path = self._directory / name
        try:
            torch.save(make(), path)
            self.written[name] = path.stat().st_size
        except Exception as error:
            path.unlink(missing_ok=True)
            self.problems.append(f"{name} could not be written: {type(error).__name__}: {error}"[:500])


def _fill(
    directory: Path, place: tuple[FrameType | None, int], batch: Any, model: Any, rng: Generators
) -> dict[str, Any]:
    """Write the files of a capsule and return their description."""
    frame, line = place
    kept, left = keepable(frame.f_locals if frame is not None else {})
    files = _Files(directory)
    files.write("batch.pt", lambda: torch.utils._pytree.tree_map_only(torch.Tensor, own_copy, batch))
    files.write("rng.pt", lambda: packed(rng))
    files.write("model.pt", lambda: _weights(model))
    files.write("locals.pt", lambda: kept)
    return {
        "where": _place(frame, line),
        "locals": short_texts(kept),
        "left_out": left,
        "files": files.written,
        "problems": files.problems,
    }


def _describe(error: BaseException, batch: Any, model: Any) -> dict[str, Any]:
    from shoal import __version__

    tensors, bad = _or_unknown(lambda: _summary(batch)), _or_unknown(lambda: non_finite(model))
    if isinstance(error, NonFiniteLoss):
        _add_cause(error, tensors, bad)
    text = "".join(traceback.format_exception(error))
    return {
        "format": FORMAT,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "error": {"type": type(error).__qualname__, "message": str(error)[:10_000], "traceback": text[-100_000:]},
        "job": os.environ.get("SHOAL_JOB_NAME"),
        "attempt": int(os.environ.get("SHOAL_ATTEMPT") or 1),
        "world_size": int(os.environ.get("WORLD_SIZE") or 1),
        "entry": entry(sys.orig_argv),
        "cwd": str(Path.cwd()),
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__), "shoal": __version__},
        "non_finite": bad,
        "batch": tensors,
    }


def _add_cause(error: NonFiniteLoss, tensors: list[Any], bad: list[str]) -> None:
    """Add the probable cause to the message: values in the batch or in the weights that are not finite."""
    hurt = [t for t in tensors if isinstance(t, dict) and t.get("non_finite")]
    weights = [name for name in bad if not name.endswith(".grad")]
    if hurt:
        where = "" if hurt[0]["path"] == "." else f" in {hurt[0]['path']}"
        why = f"the batch has {hurt[0]['non_finite']} values{where} that are not finite either"
    elif weights:
        why = f"{weights[0]} has values that are not finite" + (
            f", and {len(weights) - 1} more parameters have" * (len(weights) > 1)
        )
    else:
        why = "batch and weights are finite"
    error.message = f"{error.message}; {why}"
    error.args = (error.message,)


def entry(argv: list[str]) -> list[str]:
    """Return the script or -m module with its arguments from an interpreter's command line."""
    rest = argv[1:]
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
    return rest


def _frame_of(
    error: BaseException, trainer: Any, batch: Any, model: Any, rng: Generators
) -> tuple[FrameType | None, int]:
    if not isinstance(error, NonFiniteLoss):
        return failing_frame(error.__traceback__) or (None, 0)
    if trainer is None or any(hasattr(p, "full_tensor") for p in model.parameters()):
        return None, 0
    found: list[tuple[FrameType | None, int]] = []

    def call_again() -> None:
        try:
            set_rng_state(packed(rng))
            with torch.no_grad():
                _, frame = frame_at_return(lambda: trainer.train_batch(batch))
            found.append((frame, frame.f_lineno if frame is not None else 0))
        except Exception as second:
            found.append(failing_frame(second.__traceback__) or (None, 0))

    # The unwrapped model, in a thread with a timeout: the other workers, which it might wait for, do not take part.
    wrapped, trainer.model = trainer.model, model
    thread = threading.Thread(target=call_again, name="shoal-again", daemon=True)
    thread.start()
    thread.join(_AGAIN_S)
    trainer.model = wrapped
    return found[0] if found else (None, 0)


def _place(frame: FrameType | None, line: int) -> dict[str, Any]:
    if frame is None:
        return {}
    file, function = Path(frame.f_code.co_filename), frame.f_code.co_name
    return {"file": str(file), "line": line, "function": function, "text": f"{file.name}:{line} in {function}"}


def _weights(model: Any) -> dict[str, Any]:
    state = model.state_dict()
    if any(hasattr(v, "full_tensor") for v in state.values()):
        raise RuntimeError("the model is sharded over several workers")
    return {name: v.detach().to("cpu") if isinstance(v, torch.Tensor) else v for name, v in state.items()}


def _summary(batch: Any) -> list[dict[str, Any]]:
    found = []
    for path, tensor in _tensors(batch, ""):
        one: dict[str, Any] = {"path": path, "shape": list(tensor.shape), "dtype": str(tensor.dtype)[6:]}
        if tensor.nelement() and not tensor.is_complex():
            values = tensor.detach().float()
            bad = int((~torch.isfinite(values)).sum())
            values = values[torch.isfinite(values)]
            one |= {"min": float(values.min()), "max": float(values.max())} if values.nelement() else {}
            one |= {"non_finite": bad} if bad else {}
        found.append(one)
        if len(found) >= _MOST_TENSORS:
            break
    return found


def _tensors(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield path or ".", value
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from _tensors(item, f"{path}.{key}" if path else str(key))


def _or_unknown(make: Callable[[], Any]) -> Any:
    """Return the result, or a note if it fails: a failed device can no longer be read."""
    try:
        return make()
    except Exception as error:
        return [f"unknown: {type(error).__name__}"]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return loaded


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
