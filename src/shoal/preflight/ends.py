"""How a trial ends: an exception becomes a finding at the script's own line, and what was measured is held against what there is."""

from __future__ import annotations

import math
import re
import sys
import traceback
from types import TracebackType
from typing import Any

from . import machine
from .trial import Trial

_SHARE = 0.95
"""Of the memory: the rest is needed by others."""
_NOT_ENOUGH = ("out of memory", "can't allocate memory", "cannot allocate memory", "unable to allocate")
_MISFITS = (
    "shapes cannot be multiplied",
    "size mismatch",
    "the size of tensor",
    "must match",
    "expected input",
    "shape '",
)
_OF_CUTS = (AssertionError, StopIteration, ZeroDivisionError, IndexError)
"""What a script may raise because a loop ended before its time."""


def failed(trial: Trial, error: BaseException) -> int:
    """The exit code, once all is told as the interpreter would have."""
    if isinstance(error, SystemExit):
        return _left(trial, error)
    own = _own_traceback(error)
    trace = traceback.format_exception(type(error), error, own)
    sys.stderr.write("".join(trace))
    message = f"{type(error).__name__}: {_first_lines(str(error))}".removesuffix(": ")
    rule = _rule(trial, error, message.lower())
    if _is_known(trial, rule):
        return 1
    if rule == "memory":
        message = _too_much(trial, message)
    if trial.saving:
        message = f"While a checkpoint is saved: {message}"
    where = _where(trial, own) or _unreadable(trial, error)
    if rule == "unused-parameters":
        # Which they are is told first, by what has seen them.
        trial.ended_over_unused = True
        trial.at_end.append(lambda: trial.find(rule, message, severity="error", where=where))
    else:
        trial.find(rule, message, where=where)
    return 1


def finish(trial: Trial) -> None:
    """All there is to say, whatever has happened."""
    trial.finishing = True
    trial.stopping = trial.stopping or trial.has_errors or trial.ended_over_unused
    for look in trial.at_end:
        try:
            look()
        except Exception as error:
            trial.doubt(f"{type(error).__name__}: {error}")
    _hold_memory(trial)
    _hold_disk(trial)
    _count_steps(trial)
    trial.stopping = trial.complete = True
    trial.write()


def memory_needed(facts: dict[str, Any], *, workers: int, accels: int) -> int:
    """Bytes at most: of the machine all workers of a node, of a GPU one."""
    buckets = facts.get("gradient_bytes", 0) if workers > 1 else 0
    each = int(facts.get("peak_bytes", 0)) + int(buckets)
    return each * (accels if facts.get("on") == "machine" else 1)


def disk_needed(checkpoint: int, keep_last: int | None) -> int:
    """Those that stay, and the next one while it is written."""
    return checkpoint * ((keep_last or 1) + 1)


def _left(trial: Trial, error: SystemExit) -> int:
    code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if isinstance(error.code, str):
        sys.stderr.write(f"{error.code}\n")
    if code and not trial.has_errors:
        said = f": {_first_lines(error.code)}" if isinstance(error.code, str) else ""
        trial.find("crash", f"It ends with exit code {code}{said}.", where=_where(trial, error.__traceback__))
    return code


def _rule(trial: Trial, error: BaseException, message: str) -> str:
    if isinstance(error, ImportError):
        return "import"
    if isinstance(error, MemoryError) or any(words in message for words in _NOT_ENOUGH):
        return "memory"
    if trial.saving or "loading state_dict" in message:
        return "checkpoint"
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return "file"
    if trial.cut and (isinstance(error, _OF_CUTS) or "zip() argument" in message):
        return "cut-short"
    if "parameters that were not used in producing loss" in message:
        return "unused-parameters"
    if "dataloader worker" in message or _is_below(error.__traceback__, "torch/utils/data"):
        return "data"
    return "shapes" if any(words in message for words in _MISFITS) else "crash"


def _is_known(trial: Trial, rule: str) -> bool:
    """A hook has said already, and better, what this exception comes of."""
    known = {name for name, _ in trial.findings}
    return rule in ("crash", "shapes", "data") and bool(known & {"labels", "token-ids", "shapes", "never-steps"})


def _too_much(trial: Trial, message: str) -> str:
    """Bytes as people read them, where the error has a number of them."""
    found = re.search(r"allocate (\d+) bytes", message)
    if found is None:
        return message
    has = trial.asked.memory or machine.memory()
    return f"It asks for {_size(int(found[1]))} at once, and the machine has {_size(has)}."


def _own_traceback(error: BaseException) -> TracebackType | None:
    """Without the frames that are ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(__file__.removesuffix("ends.py")):
        trace = trace.tb_next
    return trace


def _where(trial: Trial, trace: TracebackType | None) -> tuple[str, int] | None:
    found = None
    for frame, line in traceback.walk_tb(trace):
        if (path := trial.own(frame.f_code.co_filename)) is not None:
            found = (path, line)
    return found


def _unreadable(trial: Trial, error: BaseException) -> tuple[str, int] | None:
    """The line of a script that is no Python."""
    if not isinstance(error, SyntaxError) or error.filename is None or error.lineno is None:
        return None
    path = trial.own(error.filename)
    return None if path is None else (path, error.lineno)


def _is_below(trace: TracebackType | None, part: str) -> bool:
    return any(part in frame.f_code.co_filename.replace("\\", "/") for frame, _ in traceback.walk_tb(trace))


def _first_lines(text: str) -> str:
    """The last line too: of an error in a data worker that is the one that counts."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or [""]
    return lines[0] if len(lines) < 3 else f"{lines[0]} … {lines[-1]}"


def _hold_memory(trial: Trial) -> None:
    facts, asked = trial.facts, trial.asked
    if not facts.get("peak_bytes") or not facts.get("limit_bytes"):
        return
    facts["memory_needed"] = needed = memory_needed(facts, workers=asked.workers, accels=asked.accels)
    if needed > facts["limit_bytes"] * _SHARE:
        each = f"{asked.accels} workers of {_size(needed // asked.accels)}" if asked.accels > 1 else _size(needed)
        trial.find("memory", f"It needs {each}, and the {facts['on']} has {_size(facts['limit_bytes'])}.")


def _hold_disk(trial: Trial) -> None:
    facts, asked = trial.facts, trial.asked
    free = asked.disk if asked.disk is not None else machine.free_disk(asked.output or ".")
    if not facts.get("checkpoint_bytes") or free is None:
        return
    facts["disk_free"], facts["disk_needed"] = free, disk_needed(facts["checkpoint_bytes"], asked.keep_last)
    if facts["disk_needed"] > free:
        kept = f"{asked.keep_last} are kept" if asked.keep_last else "a new one is written before an old one goes"
        size = _size(facts["checkpoint_bytes"])
        trial.find("disk", f"A checkpoint takes {size}, {kept}, and {_size(free)} are free where the job runs.")


def _count_steps(trial: Trial) -> None:
    facts = trial.facts
    epochs, batches = facts.get("asked_epochs"), facts.get("batches_per_epoch")
    if facts.get("asked_steps"):
        facts.setdefault("total_steps", facts["asked_steps"])
    elif epochs and batches:
        facts.setdefault("total_steps", epochs * math.ceil(batches / facts.get("batches_per_step", 1)))


def _size(count: int) -> str:
    """As the rest of Shoal writes it."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
