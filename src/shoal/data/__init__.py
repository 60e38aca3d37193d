"""Data for training scripts, read where it lies: `shoal.data.stream(name_or_url)` and the fsspec filesystem `shoal://`.

Importing this package costs nothing; it needs fsspec (which torch brings), and pyarrow for Parquet and Arrow files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.data.filesystem import ShoalFileSystem
    from shoal.data.random_access import MapView
    from shoal.data.streams import Stream, stream

__all__ = ["MapView", "ShoalFileSystem", "Stream", "stream"]

_HOMES = {
    "MapView": "shoal.data.random_access",
    "ShoalFileSystem": "shoal.data.filesystem",
    "Stream": "shoal.data.streams",
    "stream": "shoal.data.streams",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
