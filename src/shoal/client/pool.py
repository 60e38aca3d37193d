"""Machines of the pool: add, list, drain, remove."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.client._http import segment
from shoal.client._noun import Noun
from shoal.core.pool import JoinCommand, JoinCommandRequest, MachineChange, PoolAdd, PoolCheck, PoolMachine

_SLOW_S = 300.0
"""Time-out in seconds for calls that contact machines, some of which may not answer."""


class Pool(Noun):
    def list(self) -> list[PoolMachine]:
        return self._http.fetch(list[PoolMachine], "/pool")

    def get(self, machine: str) -> PoolMachine:
        return self._http.fetch(PoolMachine, f"/pool/machines/{segment(machine)}")

    def add(self, request: PoolAdd) -> PoolMachine:
        """Start to add a machine; `get` returns the progress."""
        return self._http.call(PoolMachine, "POST", "/pool", request)

    def drain(self, machine: str, *, draining: bool = True, devices: Sequence[str] = ()) -> PoolMachine:
        """Stop starting jobs on a machine, or on some of its devices; with `draining=False` allow them again."""
        change = MachineChange(draining=draining, devices=list(devices))
        return self._http.call(PoolMachine, "PATCH", f"/pool/machines/{segment(machine)}", change, repeatable=True)

    def remove(self, machine: str, *, force: bool = False) -> None:
        params = {"force": force}
        self._http.send("DELETE", f"/pool/machines/{segment(machine)}", params=params, timeout_s=_SLOW_S)

    def check(self, machines: Sequence[str] = (), *, speed: bool = True) -> PoolCheck:
        """Check machines (default: all), and measure the network speed between them if `speed`."""
        params = {"machine": [*machines], "speed": speed}
        return PoolCheck.model_validate_json(
            self._http.send("POST", "/pool/check", params=params, timeout_s=_SLOW_S).content
        )

    def join_command(self, ask: JoinCommandRequest) -> JoinCommand:
        return self._http.call(JoinCommand, "POST", "/pool/join-command", ask)
