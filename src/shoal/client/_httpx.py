"""httpx without its command line. Import httpx from here only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx
else:

    def _load():
        # `import httpx` also imports its own command line (click, rich, pygments: 70 of 130 ms) wherever click is
        # installed, and skips it where click is missing: so click is hidden for the length of this import.
        absent = object()
        shown = sys.modules.get("click", absent)
        sys.modules["click"] = None
        try:
            import httpx
        finally:
            if shown is absent:
                del sys.modules["click"]
            else:
                sys.modules["click"] = shown
        return httpx

    httpx = sys.modules.get("httpx") or _load()

__all__ = ["httpx"]
