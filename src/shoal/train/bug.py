"""When a step fails: all that is needed to see it happen again, in a directory beside the checkpoints and never among them.

`Capsules.save` is called while the exception is still warm. It raises nothing of its own: the failure must stay the failure.
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

from shoal.agent.bugs import ABOUT, capsules_in, step_and_rank
from shoal.core.errors import ShoalError
from shoal.sdk.saving import layout
from shoal.sdk.saving.rng import packed, set_rng_state
from shoal.train.frames import failing_frame, frame_at_return, keepable, own_copy, shown
from shoal.train.gradients import non_finite

torch: Any = import_module("torch")
logger = logging.getLogger(__name__)

FORMAT = 1
KEPT = 5
"""Newest capsules of a worker that stay."""
_OF_A_PEER = re.compile(
    r"gloo/transport|Connection (closed|reset) by peer|NCCL|Broken pipe|Socket Timeout|wait timeout"
)
_MOST_TENSORS = 50
_AGAIN_S = 30.0

Generators = tuple[Any, Any, Any, Any]
"""Of sdk.saving.rng.raw_rng_state."""


class NonFiniteLoss(ShoalError):
    """The loss is not a finite number."""

    code: ClassVar[str] = "non_finite_loss"
    exit_code: ClassVar[int] = 1


class Capsules:
    """Those of one worker, below `directory`."""

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
        """Write one; None if there is nothing to tell or it cannot be written.

        `model` is the plain one; `rng` is from right before train_batch; `about` holds at least step and seen. A loss that is not
        finite is found when train_batch has returned: with a `trainer` it is called again to see its variables.
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
            self._tell(path, known)
            return path
        except Exception as problem:
            logger.warning("shoal: what was known of the failure could not be kept: %s", problem)
            layout.discard(partial)
            return None

    def _prune(self, newest: Path) -> None:
        mine = [p for p in capsules_in(self._directory) if step_and_rank(p)[1] == self._rank and p != newest]
        mine.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in mine[: max(0, len(mine) + 1 - KEPT)]:
            layout.discard(path)

    def _tell(self, path: Path, about: Mapping[str, Any]) -> None:
        from shoal.sdk.start import current

        error, run = about["error"], current()
        if run is not None:
            told = {"error": error["type"], "text": error["message"][:2000], "where": about["where"].get("text", "")}
            run.note_bug(i=about["step"], seen=about["trainer"].get("seen"), name=path.name, **told)
        job = os.environ.get("SHOAL_JOB_NAME") if "SHOAL_URL" in os.environ else None
        command = f"shoal training replay {job}" if job else f"shoal replay {_short(path)}"
        print(f"shoal: step {about['step']} failed; to see it again: {command}", file=sys.stderr, flush=True)


def is_of_a_peer(error: BaseException) -> bool:
    """A worker was left by another one: what there is to see is with that one."""
    kinds = [getattr(torch.distributed, n, None) for n in ("DistBackendError", "DistNetworkError", "DistStoreError")]
    if isinstance(error, tuple(k for k in kinds if k is not None)):
        return True
    return isinstance(error, RuntimeError) and bool(_OF_A_PEER.search(str(error)))


class _Files:
    """Each file by itself: one that cannot be written leaves the others."""

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
    """Write the files; what is to be said of them."""
    frame, line = place
    kept, left = keepable(frame.f_locals if frame is not None else {})
    files = _Files(directory)
    files.write("batch.pt", lambda: torch.utils._pytree.tree_map_only(torch.Tensor, own_copy, batch))
    files.write("rng.pt", lambda: packed(rng))
    files.write("model.pt", lambda: _weights(model))
    files.write("locals.pt", lambda: kept)
    return {
        "where": _place(frame, line),
        "locals": shown(kept),
        "left_out": left,
        "files": files.written,
        "problems": files.problems,
    }


def _describe(error: BaseException, batch: Any, model: Any) -> dict[str, Any]:
    from shoal import __version__

    tensors, bad = _guarded(lambda: _summary(batch)), _guarded(lambda: non_finite(model))
    if isinstance(error, NonFiniteLoss):
        _say_why(error, tensors, bad)
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


def _say_why(error: NonFiniteLoss, tensors: list[Any], bad: list[str]) -> None:
    """As far as it shows: what came in broken, or what the model held."""
    hurt = [t for t in tensors if isinstance(t, dict) and t.get("non_finite")]
    weights = [name for name in bad if not name.endswith(".grad")]
    if hurt:
        where = "" if hurt[0]["path"] == "." else f" in {hurt[0]['path']}"
        why = f"the batch holds {hurt[0]['non_finite']} values{where} that are not finite either"
    elif weights:
        why = f"{weights[0]} holds values that are not finite" + (
            f", and {len(weights) - 1} more do" * (len(weights) > 1)
        )
    else:
        why = "batch and weights are finite"
    error.message = f"{error.message}; {why}"
    error.args = (error.message,)


def entry(argv: list[str]) -> list[str]:
    """Script or -m module with its arguments, of an interpreter's command line."""
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

    # With the plain model, and in a thread: other workers that it might wait for do not come.
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
        raise RuntimeError("the model is in pieces on several workers")
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


def _guarded(make: Callable[[], Any]) -> Any:
    """On a device that has failed nothing can be read any more."""
    try:
        return make()
    except Exception as error:
        return [f"unknown: {type(error).__name__}"]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return loaded


def _short(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
