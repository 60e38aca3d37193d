"""End of a probe: an exception becomes a finding at the script's own line; measurements are compared with the limits."""

from __future__ import annotations

import math
import re
import sys
import traceback
from types import TracebackType
from typing import Any

from . import machine
from .probe import Probe

_SHARE = 0.95
"""Share of the memory that a job may use; other processes need the rest."""
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
"""Exceptions that a script may raise because the preflight ended a loop early."""


def failed(probe: Probe, error: BaseException) -> int:
    """Print the exception as the interpreter would, record a finding, and return the exit code."""
    if isinstance(error, SystemExit):
        return _left(probe, error)
    own = _own_traceback(error)
    trace = traceback.format_exception(type(error), error, own)
    sys.stderr.write("".join(trace))
    message = f"{type(error).__name__}: {_first_lines(str(error))}".removesuffix(": ")
    rule = _rule(probe, error, message.lower())
    if _is_known(probe, rule):
        return 1
    if rule == "memory":
        message = _too_much(probe, message)
    if probe.saving:
        message = f"While a checkpoint is saved: {message}"
    where = _where(probe, own) or _unreadable(probe, error)
    if rule == "unused-parameters":
        # `Optimizers` records the names of the parameters first, in its own at_end function.
        probe.ended_over_unused = True
        probe.at_end.append(lambda: probe.find(rule, message, severity="error", where=where))
    else:
        probe.find(rule, message, where=where)
    return 1


def finish(probe: Probe) -> None:
    """Run the final checks and write the report, however the script has ended."""
    probe.finishing = True
    probe.stopping = probe.stopping or probe.has_errors or probe.ended_over_unused
    for look in probe.at_end:
        try:
            look()
        except Exception as error:
            probe.doubt(f"{type(error).__name__}: {error}")
    _hold_memory(probe)
    _hold_disk(probe)
    _count_steps(probe)
    probe.stopping = probe.complete = True
    probe.write()


def memory_needed(facts: dict[str, Any], *, workers: int, accels: int) -> int:
    """Return the peak memory in bytes: of all workers of a node for a machine, of one worker for a GPU."""
    buckets = facts.get("gradient_bytes", 0) if workers > 1 else 0
    each = int(facts.get("peak_bytes", 0)) + int(buckets)
    return each * (accels if facts.get("on") == "machine" else 1)


def disk_needed(checkpoint: int, keep_last: int | None) -> int:
    """Return the bytes of the checkpoints that are kept, plus the next one while it is written."""
    return checkpoint * ((keep_last or 1) + 1)


def _left(probe: Probe, error: SystemExit) -> int:
    code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if isinstance(error.code, str):
        sys.stderr.write(f"{error.code}\n")
    if code and not probe.has_errors:
        said = f": {_first_lines(error.code)}" if isinstance(error.code, str) else ""
        probe.find("crash", f"The script ends with exit code {code}{said}.", where=_where(probe, error.__traceback__))
    return code


def _rule(probe: Probe, error: BaseException, message: str) -> str:
    if isinstance(error, ImportError):
        return "import"
    if isinstance(error, MemoryError) or any(words in message for words in _NOT_ENOUGH):
        return "memory"
    if probe.saving or "loading state_dict" in message:
        return "checkpoint"
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return "file"
    if probe.cut and (isinstance(error, _OF_CUTS) or "zip() argument" in message):
        return "cut-short"
    if "parameters that were not used in producing loss" in message:
        return "unused-parameters"
    if "dataloader worker" in message or _is_below(error.__traceback__, "torch/utils/data"):
        return "data"
    return "shapes" if any(words in message for words in _MISFITS) else "crash"


def _is_known(probe: Probe, rule: str) -> bool:
    """Check whether a hook has already recorded the cause of this exception."""
    known = {name for name, _ in probe.findings}
    return rule in ("crash", "shapes", "data") and bool(known & {"labels", "token-ids", "shapes", "never-steps"})


def _too_much(probe: Probe, message: str) -> str:
    """Return the message of an allocation error with readable sizes, if it contains a number of bytes."""
    found = re.search(r"allocate (\d+) bytes", message)
    if found is None:
        return message
    has = probe.asked.memory or machine.memory()
    return f"The script allocates {_size(int(found[1]))} at once, but the machine has {_size(has)}."


def _own_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback without the frames of the preflight."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(__file__.removesuffix("ends.py")):
        trace = trace.tb_next
    return trace


def _where(probe: Probe, trace: TracebackType | None) -> tuple[str, int] | None:
    found = None
    for frame, line in traceback.walk_tb(trace):
        if (path := probe.own(frame.f_code.co_filename)) is not None:
            found = (path, line)
    return found


def _unreadable(probe: Probe, error: BaseException) -> tuple[str, int] | None:
    """Return the path and line of a syntax error in the script, or None."""
    if not isinstance(error, SyntaxError) or error.filename is None or error.lineno is None:
        return None
    path = probe.own(error.filename)
    return None if path is None else (path, error.lineno)


def _is_below(trace: TracebackType | None, part: str) -> bool:
    return any(part in frame.f_code.co_filename.replace("\\", "/") for frame, _ in traceback.walk_tb(trace))


def _first_lines(text: str) -> str:
    """Return the first line of a text and its last one, which has the cause of an error in a data worker."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or [""]
    return lines[0] if len(lines) < 3 else f"{lines[0]} … {lines[-1]}"


def _hold_memory(probe: Probe) -> None:
    facts, asked = probe.facts, probe.asked
    if not facts.get("peak_bytes") or not facts.get("limit_bytes"):
        return
    facts["memory_needed"] = needed = memory_needed(facts, workers=asked.workers, accels=asked.accels)
    if needed > facts["limit_bytes"] * _SHARE:
        each = f"{asked.accels} workers of {_size(needed // asked.accels)}" if asked.accels > 1 else _size(needed)
        probe.find("memory", f"The job needs {each}, but the {facts['on']} has {_size(facts['limit_bytes'])}.")


def _hold_disk(probe: Probe) -> None:
    facts, asked = probe.facts, probe.asked
    free = asked.disk if asked.disk is not None else machine.free_disk(asked.output or ".")
    if not facts.get("checkpoint_bytes") or free is None:
        return
    facts["disk_free"], facts["disk_needed"] = free, disk_needed(facts["checkpoint_bytes"], asked.keep_last)
    if facts["disk_needed"] > free:
        kept = (
            f"{asked.keep_last} are kept" if asked.keep_last else "a new one is written before the old one is deleted"
        )
        size = _size(facts["checkpoint_bytes"])
        probe.find("disk", f"A checkpoint takes {size}, {kept}, but only {_size(free)} are free where the job runs.")


def _count_steps(probe: Probe) -> None:
    facts = probe.facts
    epochs, batches = facts.get("asked_epochs"), facts.get("batches_per_epoch")
    if facts.get("asked_steps"):
        facts.setdefault("total_steps", facts["asked_steps"])
    elif epochs and batches:
        facts.setdefault("total_steps", epochs * math.ceil(batches / facts.get("batches_per_step", 1)))


def _size(count: int) -> str:
    """Format a number of bytes as elsewhere in Shoal."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
