"""Writes docs/reference from the code. Only job-runtime.md there is written by hand.

`pages` is all there is to call: file name → text, the same on every machine.
"""

from __future__ import annotations

from generator import api, cli, errors, schemas, settings

NOTE = "<!-- Written by scripts/docs from the code: change it there, then run scripts/docs. -->\n\n"


def pages() -> dict[str, str]:
    makers = {"cli": cli, "api": api, "schemas": schemas, "settings": settings, "errors": errors}
    return {f"{name}.md": NOTE + maker.page() for name, maker in makers.items()}
