"""Streaming of training data: `shoal.data.stream(name_or_url)` and the fsspec filesystem `shoal://`.

Importing this package is cheap. It needs fsspec, which torch installs, and pyarrow for Parquet and Arrow files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.lazy import lazy_names

if TYPE_CHECKING:
    from shoal.data.filesystem import ShoalFileSystem
    from shoal.data.random_access import MapView
    from shoal.data.streams import Stream, stream

__all__ = ["MapView", "ShoalFileSystem", "Stream", "stream"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "MapView": ".random_access",
        "ShoalFileSystem": ".filesystem",
        "Stream": ".streams",
        "stream": ".streams",
    },
)
