"""The schemas of shoal.core.agents as plain objects: pydantic alone would double the time to the user's first line.

tests/unit/agent/test_wire.py holds every field and default here to the schemas.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOKEN_HEADER = "X-Shoal-Agent"
INSTANCE_HEADER = "X-Shoal-Instance"
BEAT_INTERVAL_S = 1.0
JOIN_REFUSED = "its agent could not join the server"
"""How the reason of a node begins whose agent the server has turned away."""
STOP_REASON = "stop-reason"
"""The file beside the SDK's records that says why the workers are told to stop."""
SAVE_WANTED = "save-wanted"
"""The file there by which a checkpoint is asked for."""

PUT_BACK = "SHOAL_PUT_BACK"
"""Set to 0 by a job: its working directory is not looked at for checkpoints, and nothing is put back."""
GATEWAY_USER = "agent"
"""As whom an agent comes to the SSH gateway, with its token; no lease is called so."""
LEASE_HOST, LEASE_PORT = "lease", 22
"""What the gateway asks an agent for to be brought to its lease."""
DIRECT_HOST = "direct"
"""With a port: where on its own machine an agent lets people in, if they can come there."""
LEASE_SOCKET = "ssh.sock"
"""Where a lease's SSH server listens, in the folder it shares with its agent."""
GATEWAY_MARK = "gateway"
"""What the line of the gateway's key begins with, among those that open a lease."""
TELL = "shoal-tell"
"""The subsystem by which the gateway has a text shown in terminals it does not see."""


class _Wire:
    """Takes what it knows from a JSON object and ignores the rest; class attributes are the defaults."""

    def __init__(self, data: dict[str, Any]):
        known = type(self).__annotations__
        self.__dict__.update({k: v for k, v in data.items() if k in known})


class Launch(_Wire):
    job_id: str
    job_name: str
    attempt_id: str
    attempt: int
    node: int
    token: str
    url: str
    server_file: str | None = None
    instance: str | None = None
    store_path: str | None = None
    work_dir: str
    cache_dir: str
    python: str
    machine: str
    slots: list[int]
    slot_kind: str = "cpu"
    cpu_threads: int = 1
    address: str | None = None
    hide: list[str] = []

    @classmethod
    def read(cls, path: Path) -> Launch:
        launch = cls(json.loads(path.read_text()))
        missing = [name for name in cls.__annotations__ if not hasattr(launch, name)]
        if missing:
            raise ValueError(f"{path}: no {', '.join(missing)}")
        return launch


class Mount(_Wire):
    path: str
    manifest_id: str
    name: str


class PutBack(_Wire):
    id: str
    name: str
    place: str
    manifest_id: str


class Neighbours(_Wire):
    key: str
    own: str
    gang: list[str] = []
    holders: list[str] = []


class JoinReply(_Wire):
    ready: bool
    num_nodes: int = 1
    entry: list[str] = []
    accels: int = 1
    launcher: str = "direct"
    allow_cpu: bool = False
    master_addr: str = ""
    master_port: int = 0
    source: dict[str, Any] | None = None
    mounts: list[Mount] = []
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    lease: dict[str, Any] | None = None
    neighbours: dict[str, Neighbours] = {}
    allow_torch_change: bool = False
    put_back: list[PutBack] = []
    is_distributed: bool = False

    def __init__(self, data: dict[str, Any]):
        super().__init__(data)
        self.mounts = [Mount(m) for m in data.get("mounts", [])]
        self.put_back = [PutBack(p) for p in data.get("put_back", [])]
        self.neighbours = {k: Neighbours(v) for k, v in data.get("neighbours", {}).items()}

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.accels


class BeatReply(_Wire):
    fenced: bool = False
    stop: bool = False
    beat_in_s: float | None = None
    grace_s: float = 10.0
    why: str | None = None
    left_s: float | None = None
    commands: list[dict[str, Any]] = []
