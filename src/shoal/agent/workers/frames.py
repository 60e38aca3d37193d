"""Parses dumps of Python stacks and describes in a few words where the main thread is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MOST_FRAMES = 40
_MOST_NAMED = 8
"""Most ranks listed one by one in a text; larger groups are shown as a count."""
_THREAD = re.compile(r"^(?:Current thread|Thread) ", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$', re.MULTILINE)
_SPY_THREAD = re.compile(r"^Thread .*$", re.MULTILINE)
_SPY_FRAME = re.compile(r"^    (\S.*) \((.+):(\d+)\)$", re.MULTILINE)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen|^<string>")
_PACKAGES = re.compile(r"^.*/(?:(?:site|dist)-packages|lib/python3[.\d]*)/")
_AROUND = frozenset(
    "wrapper inner decorate_context _fn __call__ _call_impl _wrapped_call_impl _wrapper __enter__ __exit__".split()
)
"""Names of wrapper functions, which say nothing about what is being done."""


class Frame(NamedTuple):
    """One frame of a Python stack."""

    path: str
    line: int
    function: str


def from_faulthandler(text: str) -> list[Frame]:
    """Return the main thread's frames, innermost first. faulthandler prints the main thread last."""
    threads = [part for part in _THREAD.split(text) if part.strip()]
    found = [[Frame(path, int(line), name) for path, line, name in _FRAME.findall(part)] for part in threads]
    return next((frames for frames in reversed(found) if frames), [])


def from_py_spy(text: str) -> list[Frame]:
    """Return the main thread's frames, innermost first. py-spy prints the main thread first."""
    for part in _SPY_THREAD.split(text):
        if frames := [Frame(path, int(line), name) for name, path, line in _SPY_FRAME.findall(part)]:
            return frames
    return []


def describe(frames: list[Frame], source: str, ours: str) -> dict[str, Any]:
    """Return the fields of core.stacks.RankStack.

    `source` is the folder of the job's code, `ours` that of the Shoal package.
    """
    own = next((i for i, f in enumerate(frames) if _is_own(f.path, source, ours)), None)
    place = frames[-1] if own is None else frames[own]
    called = frames[:own] if own is not None else frames[:-1]
    inside = _call(called) if called else None
    return {
        "inside": (inside or place.function)[:200],
        "at": f"{_short(place.path, source)}:{place.line}"[:500],
        "waits": inside is not None,
        "frames": [f"{f.function} ({_short(f.path, source)}:{f.line})"[:500] for f in frames[:MOST_FRAMES]],
    }


def where(about: Mapping[str, Any], count: int = 1) -> str:
    """Return a text such as `wait in all_reduce, called at train.py:41` for `count` ranks with these fields of RankStack."""
    many, inside, at = count > 1, about.get("inside"), about.get("at")
    if not inside:
        return f"{'are' if many else 'is'} {about.get('note') or 'in an unknown state'}"
    if about.get("waits"):
        return f"{'wait' if many else 'waits'} in {inside}, called at {at}"
    return f"{'are' if many else 'is'} in {inside} at {at}"


def names(ranks: list[int]) -> str:
    """Return `rank 2`, `ranks 0, 1 and 3`, or the number of ranks if there are many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} ranks ({ranks[0]} to {ranks[-1]})"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def place(about: Mapping[str, Any]) -> str:
    """Return a key that is equal for ranks at the same place."""
    return "|".join(str(about.get(name) or "") for name in ("waits", "inside", "at", "note"))


def together(found: Iterable[Mapping[str, Any]]) -> str:
    """Describe all ranks in one line, grouped by place."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for about in found:
        groups.setdefault(place(about), []).append(about)
    return "; ".join(f"{names([a['rank'] for a in group])} {where(group[0], len(group))}" for group in groups.values())


def _call(called: list[Frame]) -> str:
    """Return the library function that the job's code called: the outermost frame that is not a wrapper."""
    frame = next((f for f in reversed(called) if f.function not in _AROUND), called[-1])
    if frame.path.startswith("<frozen importlib"):
        return "import"
    if not frame.function.startswith("__"):
        return frame.function
    return f"{frame.path.rpartition('/')[2].removesuffix('.py')}.{frame.function}"


def _is_own(path: str, source: str, ours: str) -> bool:
    if path.startswith(f"{source}/"):
        return True
    return not _LIBRARY.search(path) and not path.startswith(f"{ours}/")


def _short(path: str, source: str) -> str:
    """Return the path relative to the job's code, or to the packages of its interpreter."""
    if path.startswith(f"{source}/"):
        return path[len(source) + 1 :]
    return _PACKAGES.sub("", path)
