"""Conversion of notebooks to scripts that run as jobs. Pure: nothing is run, fetched or written here."""

from shoal.notebooks.convert import REQUIREMENTS, Conversion, convert
from shoal.notebooks.reading import MAX_BYTES

__all__ = ["MAX_BYTES", "REQUIREMENTS", "Conversion", "convert"]
