"""Check of a machine by SSH: its facts and its problems."""

from __future__ import annotations

import socket
import time
from typing import Any

from shoal.agent.devices.device import Inventory
from shoal.core.errors import Refused
from shoal.core.pool import PoolAdd, Problem
from shoal.engines.kinds import pool_kind
from shoal.server.context import Context
from shoal.server.pool.bootstrap import kind_of
from shoal.server.pool.problems import device_problems, diagnose, missing_parts
from shoal.server.pool.runtime import installed, torch_given
from shoal.server.pool.ssh import Ssh

_KNOCK_S = 3.0
_TRY_S = 900.0
_READ_S = 180.0


def examine(ctx: Context, ssh: Ssh, asked: PoolAdd, url: str) -> tuple[dict[str, Any], list[Problem]]:
    """Return a machine's facts and problems. During the probe it opens a port, and the server connects to it as a test."""
    skew_s = 0.0

    def on_message(words: dict[str, Any]) -> None:
        nonlocal skew_s
        if "listening" in words:
            skew_s = float(words["time"]) - time.time()
            knock(words["address"], int(words["listening"]))

    facts: dict[str, Any] = ssh.do({"do": "probe", **ctx.pool.probe_request(url)}, python=asked.python, say=on_message)
    return facts, problems(facts, asked, skew_s=skew_s, torch=torch_given(ctx.settings, kind_of(facts)))


def problems(facts: dict[str, Any], asked: PoolAdd, *, skew_s: float, torch: str | None) -> list[Problem]:
    found = diagnose(facts, needs_runtime=asked.python is None, skew_s=skew_s, gpus=asked.gpus, torch=torch)
    if asked.python is not None:
        found += missing_parts(facts, {name: installed(name) for name in ("shoal-train", *pool_kind().packages)})
    return found


def read_devices(ssh: Ssh, python: str) -> Inventory:
    """Return the accelerators of a machine, as the runtime there reads them."""
    return Inventory.from_json(ssh.do({"do": "read_devices"}, python=python, timeout_s=_READ_S))


def try_devices(ssh: Ssh, python: str, machine: str) -> list[Problem]:
    """Return the problems of a machine's accelerators: each runs a tensor, and all of them an all-reduce."""
    try:
        return device_problems(ssh.do({"do": "try_devices"}, python=python, timeout_s=_TRY_S), machine)
    except Refused as error:
        return [Problem(text=f"its accelerators could not be tried: {error.message}", fix=error.hint or "")]


def knock(address: str, port: int) -> None:
    try:
        socket.create_connection((address, port), timeout=_KNOCK_S).close()
    except OSError:
        return
