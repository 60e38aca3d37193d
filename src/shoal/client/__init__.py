"""The typed HTTP client: `Client(url, key, workspace)` with one module per noun. Importing it costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from shoal.client.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
