"""A look at a machine by SSH: what it is, and what is wrong with it."""

from __future__ import annotations

import socket
import time
from typing import Any

from shoal.core.pool import PoolAdd, Problem
from shoal.server.context import Context
from shoal.server.services.pool_problems import diagnose, missing_parts
from shoal.server.services.pool_runtime import installed
from shoal.server.services.pool_ssh import Ssh

_KNOCK_S = 3.0


def look(ctx: Context, ssh: Ssh, asked: PoolAdd, url: str) -> tuple[dict[str, Any], list[Problem]]:
    """Its facts and problems. While it looks, it opens a port for a moment; we knock there."""
    skew_s = 0.0

    def hear(words: dict[str, Any]) -> None:
        nonlocal skew_s
        if "listening" in words:
            skew_s = float(words["time"]) - time.time()
            knock(words["address"], int(words["listening"]))

    facts: dict[str, Any] = ssh.do({"do": "probe", **ctx.pool.ways(url)}, python=asked.python, say=hear)
    return facts, problems(facts, asked, skew_s=skew_s)


def problems(facts: dict[str, Any], asked: PoolAdd, *, skew_s: float) -> list[Problem]:
    found = diagnose(facts, needs_runtime=asked.python is None, skew_s=skew_s, gpus=asked.gpus)
    if asked.python is not None:
        found += missing_parts(facts, {name: installed(name) for name in ("shoal", "ray")})
    return found


def knock(address: str, port: int) -> None:
    try:
        socket.create_connection((address, port), timeout=_KNOCK_S).close()
    except OSError:
        return
