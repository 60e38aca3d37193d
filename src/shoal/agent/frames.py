"""What a dump of Python stacks says: the main thread's frames, and where its own code is, in a few words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MOST_FRAMES = 40
_MOST_NAMED = 8
"""Ranks named one by one in a text; more are counted."""
_THREAD = re.compile(r"^(?:Current thread|Thread) ", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$', re.MULTILINE)
_SPY_THREAD = re.compile(r"^Thread .*$", re.MULTILINE)
_SPY_FRAME = re.compile(r"^    (\S.*) \((.+):(\d+)\)$", re.MULTILINE)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen|^<string>")
_PACKAGES = re.compile(r"^.*/(?:(?:site|dist)-packages|lib/python3[.\d]*)/")
_AROUND = frozenset(
    "wrapper inner decorate_context _fn __call__ _call_impl _wrapped_call_impl _wrapper __enter__ __exit__".split()
)
"""Functions that stand around others and say nothing of what is done."""


class Frame(NamedTuple):
    path: str
    line: int
    function: str


def from_faulthandler(text: str) -> list[Frame]:
    """Of the main thread, innermost first: it was the first, and stands last."""
    threads = [part for part in _THREAD.split(text) if part.strip()]
    found = [[Frame(path, int(line), name) for path, line, name in _FRAME.findall(part)] for part in threads]
    return next((frames for frames in reversed(found) if frames), [])


def from_py_spy(text: str) -> list[Frame]:
    """py-spy names the main thread first."""
    for part in _SPY_THREAD.split(text):
        if frames := [Frame(path, int(line), name) for name, path, line in _SPY_FRAME.findall(part)]:
            return frames
    return []


def describe(frames: list[Frame], source: str, ours: str) -> dict[str, Any]:
    """Fields of core.stacks.RankStack. `source`: where the job's code is; `ours`: Shoal's own package."""
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
    """`wait in all_reduce, called at train.py:41`, of so many ranks with these fields of core.stacks.RankStack."""
    many, inside, at = count > 1, about.get("inside"), about.get("at")
    if not inside:
        return f"{'are' if many else 'is'} {about.get('note') or 'not to be seen'}"
    if about.get("waits"):
        return f"{'wait' if many else 'waits'} in {inside}, called at {at}"
    return f"{'are' if many else 'is'} in {inside} at {at}"


def names(ranks: list[int]) -> str:
    """`rank 2`, `ranks 0, 1 and 3`, or how many they are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} ranks ({ranks[0]} to {ranks[-1]})"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def place(about: Mapping[str, Any]) -> str:
    """The same for ranks that are at the same place."""
    return "|".join(str(about.get(name) or "") for name in ("waits", "inside", "at", "note"))


def together(found: Iterable[Mapping[str, Any]]) -> str:
    """All of them in one line, those at the same place together."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for about in found:
        groups.setdefault(place(about), []).append(about)
    return "; ".join(f"{names([a['rank'] for a in group])} {where(group[0], len(group))}" for group in groups.values())


def _call(called: list[Frame]) -> str:
    """The library's function that the own code meant to call: the outermost that says something."""
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
    """Within the job's code, or within the packages of its interpreter."""
    if path.startswith(f"{source}/"):
        return path[len(source) + 1 :]
    return _PACKAGES.sub("", path)
