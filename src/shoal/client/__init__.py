"""Typed HTTP client: `Client(url, key, workspace)` with one module per noun. Importing it is fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.lazy import lazy_names

if TYPE_CHECKING:
    from shoal.client.client import Client

__all__ = ["Client"]

__getattr__, __dir__ = lazy_names(__name__, {"Client": ".client"})
