"""The import name of TopSpin; everything is in `shoal.compat.topspin`."""

from shoal import __version__  # noqa: F401
from shoal.compat import topspin as _topspin

__all__ = _topspin.__all__


def __getattr__(name: str) -> object:
    return getattr(_topspin, name)
