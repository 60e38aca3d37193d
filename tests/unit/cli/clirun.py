"""Result of running a command in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Ran:
    code: int
    out: str
    err: str


Cli = Callable[..., Ran]
