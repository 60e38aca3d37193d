"""The faults that can be injected on one machine, by their number in the fault matrix (docs/explanation/reliability.md).

A fault is a function that injects, waits and repairs; it returns when the surroundings are sound again. Whether and when the
server then works again is measured by the caller.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import psutil

from shoal.core.errors import ShoalError
from shoal.store.pack import pack_files
from shoal.testing.nemesis import disk, shim
from shoal.testing.nemesis.history import History
from shoal.testing.nemesis.workload import Workload
from shoal.testing.nemesis.world import NODE_TIMEOUT_S, World
from shoal.testing.processes import command


@dataclass(slots=True)
class Scene:
    """Everything a fault may act on. `scale` shortens how long faults last; `hold_s` is how long those that hold on do."""

    world: World
    workload: Workload
    history: History
    rng: random.Random
    scale: float = 1.0
    hold_s: float | None = None

    def hold(self, low_s: float, high_s: float) -> float:
        """Wait as long as the fault is to hold on: `hold_s`, or a random time; return it."""
        return self.last(low_s, high_s) if self.hold_s is None else self.last(self.hold_s, self.hold_s)

    def last(self, low_s: float, high_s: float) -> float:
        """Wait for a random time and return it."""
        seconds = self.rng.uniform(low_s, high_s) * self.scale
        self.world.is_closing.wait(seconds)
        return round(seconds, 2)


Inject = Callable[[Scene], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    id: str
    what: str
    inject: Inject
    needs_disk: bool = False
    costs_nodes: bool = False
    """True if lines that a machine had not delivered may be lost with it."""


KINDS: dict[str, Kind] = {}


def _kind(id: str, what: str, **more: bool) -> Callable[[Inject], Inject]:
    def add(inject: Inject) -> Inject:
        KINDS[id] = Kind(id, what, inject, **more)
        return inject

    return add


def available(*, small_disk: bool) -> list[str]:
    """Return the faults that can be injected here."""
    if shim.missing():
        return []
    can_mount = small_disk and disk.missing() is None
    return [kind.id for kind in KINDS.values() if can_mount or not kind.needs_disk]


@_kind("F1", "server killed with SIGKILL")
def _kill_server(scene: Scene) -> dict[str, Any]:
    scene.last(0, 2)
    scene.world.kill()
    scene.world.start()
    return {}


@_kind("F2", "server killed at its n-th write")
def _kill_at_write(scene: Scene) -> dict[str, Any]:
    number = scene.rng.randint(1, 60)
    scene.world.shim.set_fields("server", kill_after=number)
    died = scene.world.wait_dead(30) is not None
    scene.world.shim.set_fields("server")
    if not died:
        scene.world.kill()
    scene.world.start()
    return {"write": number, "died": died}


@_kind("F3", "power cut: all processes end, what was not flushed is lost", needs_disk=True, costs_nodes=True)
def _cut_power(scene: Scene) -> dict[str, Any]:
    scene.world.cut_power()
    scene.world.start()
    return {}


@_kind("F4", "fsync fails with EIO: the server ends by itself with exit code 74")
def _flush_fails(scene: Scene) -> dict[str, Any]:
    scene.world.shim.set_fields("server", sync_errno=errno.EIO)
    began = scene.history.now()
    code = scene.world.wait_dead(60)
    after = [op for op in scene.history.operations if op.result == "ok" and op.kind in WRITES and op.began > began]
    scene.world.shim.set_fields("server")
    if code is None:
        scene.history.note("lives", "server", "it still runs after fsync failed")
        scene.world.kill()
    elif code != os.EX_IOERR:
        scene.history.note("exit", "server", f"it ended with exit code {code} after fsync failed")
    for op in after:
        scene.history.note("acknowledged", op.subject, f"{op.kind} was acknowledged after fsync failed")
    scene.world.start()
    return {"exit_code": code}


WRITES = frozenset({"submit", "sweep", "key", "revoke", "push"})
"""Operations that are acknowledged only after a flush."""


@_kind("F5", "disk full", needs_disk=True)
def _fill_disk(scene: Scene) -> dict[str, Any]:
    assert scene.world.disk is not None
    scene.world.disk.fill()
    try:
        return {"seconds": scene.hold(5, 15)}
    finally:
        scene.world.disk.free()


@_kind("F5-io", "every write of the server fails with EIO")
def _fail_writes(scene: Scene) -> dict[str, Any]:
    return _sick(scene, "server", write_errno=errno.EIO)


@_kind("F5-ro", "the server's disk is read-only")
def _read_only(scene: Scene) -> dict[str, Any]:
    return _sick(scene, "server", write_errno=errno.EROFS, open_errno=errno.EROFS)


@_kind("F5-node", "the disk of the agents is full or fails")
def _sick_nodes(scene: Scene) -> dict[str, Any]:
    number = scene.rng.choice([errno.ENOSPC, errno.EIO])
    return _sick(scene, "agents", write_errno=number, open_errno=number) | {"errno": number}


@_kind("F6", "database locked by another process")
def _lock(scene: Scene) -> dict[str, Any]:
    with closing(sqlite3.connect(scene.world.layout.database, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        try:
            return {"seconds": scene.hold(3, 12)}
        finally:
            connection.execute("ROLLBACK")


@_kind("F6-slow", "every flush of the server takes half a second")
def _slow(scene: Scene) -> dict[str, Any]:
    return _sick(scene, "server", sync_delay_ms=500)


@_kind("F7", "server away")
def _away(scene: Scene) -> dict[str, Any]:
    scene.world.kill()
    seconds = scene.hold(10, 30)
    scene.world.start()
    return {"seconds": seconds}


@_kind("F8", "worker killed with SIGKILL")
def _kill_worker(scene: Scene) -> dict[str, Any]:
    return _signal_one(scene, scene.world.worker_pids(), signal.SIGKILL)


@_kind("F9", "agent killed with SIGKILL", costs_nodes=True)
def _kill_agent(scene: Scene) -> dict[str, Any]:
    return _signal_one(scene, scene.world.agent_pids(), signal.SIGKILL)


@_kind("F10", "node killed: agent, its helpers and workers at once", costs_nodes=True)
def _kill_node(scene: Scene) -> dict[str, Any]:
    pids = scene.world.agent_pids()
    if not pids:
        return {"pids": []}
    agent = psutil.Process(scene.rng.choice(pids))
    with suppress(psutil.NoSuchProcess):
        tree = [agent, *agent.children(recursive=True)]
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for process in tree:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(sent)
    return {"pids": [agent.pid]}


@_kind("F11", "agent frozen, sometimes beyond the node timeout", costs_nodes=True)
def _freeze_agent(scene: Scene) -> dict[str, Any]:
    found = _signal_one(scene, scene.world.agent_pids(), signal.SIGSTOP)
    if scene.rng.random() < 0.5:
        found["seconds"] = scene.last(2, 8)
    else:  # so that it is given up, and comes back afterwards
        scene.world.is_closing.wait(NODE_TIMEOUT_S + 5)
        found["seconds"] = NODE_TIMEOUT_S + 5
    _signal(found["pids"], signal.SIGCONT)
    return found


@_kind("F11-server", "server frozen")
def _freeze_server(scene: Scene) -> dict[str, Any]:
    record = scene.world.record()
    pids = [record.pid] if record else []
    _signal(pids, signal.SIGSTOP)
    try:
        return {"seconds": scene.last(3, 25)}
    finally:
        _signal(pids, signal.SIGCONT)


@_kind("F11-hung", "rank that hangs without an end")
def _hang(scene: Scene) -> dict[str, Any]:
    name = f"job-hung-{int(scene.history.now() * 10)}"
    steps = 30
    spec = scene.workload.spec(name, steps, 0.05, hang=True)
    with scene.history.operation("submit", name, steps=steps) as op, scene.world.connect() as client:
        op.answer["id"] = client.jobs.create(spec).id
    return {"job": name, "result": op.result}


@_kind("F16", "one bit of a stored chunk flips")
def _flip(scene: Scene) -> dict[str, Any]:
    """Push a dataset, damage it, see that it is refused, repair it."""
    data, name = scene.rng.randbytes(300_000), f"flipped-{int(scene.history.now() * 10)}"
    file = scene.world.folder / "flipped"
    file.write_bytes(data)
    try:
        with scene.world.connect() as client:
            client.datasets.push(name, pack_files({"data.bin": file}))
            found = _holding(scene.world, data[1000:1064])
            if found is None:
                return {"chunk": None}
            path, at = found
            _flip_bit(path, at)
            try:
                target = scene.world.folder / name
                client.datasets.fetch(name, target)
                if (target / "data.bin").read_bytes() != data:
                    scene.history.note("silent", name, "a damaged chunk was handed out")
            except ShoalError as error:
                return {"chunk": path.name, "refused": error.code}
            finally:
                _flip_bit(path, at)
    except ShoalError as error:
        return {"chunk": None, "error": error.code}
    return {"chunk": path.name, "refused": None}


@_kind("F18", "system clock of the server jumps by an hour or a day")
def _jump(scene: Scene) -> dict[str, Any]:
    seconds = scene.rng.choice([3600, -3600, 86_400, -86_400])
    return _sick(scene, "server", clock_ns=seconds * 10**9) | {"by": seconds}


@_kind("F18-node", "system clock of the agents jumps by an hour")
def _jump_nodes(scene: Scene) -> dict[str, Any]:
    seconds = scene.rng.choice([3600, -3600])
    return _sick(scene, "agents", clock_ns=seconds * 10**9) | {"by": seconds}


@_kind("F20", "stop and resume of one job from six clients at once")
def _race(scene: Scene) -> dict[str, Any]:
    name = f"job-raced-{int(scene.history.now() * 10)}"
    spec = scene.workload.spec(name, 40, 0.05)
    with scene.history.operation("submit", name, steps=40) as op, scene.world.connect() as client:
        op.answer["id"] = client.jobs.create(spec).id
    for _ in range(3):
        scene.last(0.2, 2)
        scene.workload.race(name)
    return {"job": name}


@_kind("F25", "backup while everything works, verified")
def _backup(scene: Scene) -> dict[str, Any]:
    place = scene.world.folder / "backups"
    before = [op.subject for op in scene.history.operations if op.kind == "submit" and op.result == "ok"]
    made = scene.world.cli("server", "backup", "create", str(place), check=None)
    if made.returncode:
        return {"made": False, "said": made.stderr[-500:]}
    verified = scene.world.cli("server", "backup", "verify", str(place), check=None)
    if verified.returncode:
        scene.history.note("backup", "backup", f"it does not verify: {verified.stdout[-500:]}{verified.stderr[-500:]}")
    return {"made": True, "jobs": before}


def _sick(scene: Scene, whom: shim.Whom, **order: int) -> dict[str, Any]:
    scene.world.shim.set_fields(whom, **order)
    try:
        return {"seconds": scene.hold(5, 15)}
    finally:
        scene.world.shim.set_fields(whom)


def _signal_one(scene: Scene, pids: list[int], sent: signal.Signals) -> dict[str, Any]:
    chosen = [scene.rng.choice(pids)] if pids else []
    what = [command(psutil.Process(pid))[-80:] for pid in chosen if psutil.pid_exists(pid)]
    _signal(chosen, sent)
    return {"pids": chosen, "what": what}


def _signal(pids: list[int], sent: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sent)


def _holding(world: World, part: bytes) -> Any:
    for path in sorted(world.layout.store_dir.rglob("*"), key=lambda p: -p.stat().st_mtime if p.exists() else 0)[:2000]:
        with suppress(OSError):
            if path.is_file() and (at := path.read_bytes().find(part)) >= 0:
                return path, at
    return None


def _flip_bit(path: Any, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def wait_well(world: World, limit_s: float) -> float | None:
    """Return the seconds until the server is well again, None if it was not within the limit."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if world.is_well():
            return time.monotonic() - began
        time.sleep(0.2)
    return None
