"""Origin of a request, for rate limits and for people: its address, and the program that sent it."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request

_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
_SYSTEMS = (("Android", "Android"), ("iPhone", "iPhone"), ("iPad", "iPad"), ("Windows", "Windows"), ("Mac OS X", "macOS"),
            ("CrOS", "ChromeOS"), ("Linux", "Linux"))  # fmt: skip
_LONGEST = 60


def program(user_agent: str) -> str:
    """Return the program of a User-Agent: `Firefox on Linux` for a browser, the first word for anything else."""
    browser = next((name for mark, name in _BROWSERS if mark in user_agent), None)
    if browser is None:
        return re.sub(r"[^ -~]", "", user_agent).split(" ")[0][:_LONGEST]
    system = next((name for mark, name in _SYSTEMS if mark in user_agent), None)
    return f"{browser} on {system}" if system else browser


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _program(request: Request) -> str:
    return program(request.headers.get("user-agent", ""))


Address = Annotated[str, Depends(_address)]
Program = Annotated[str, Depends(_program)]
