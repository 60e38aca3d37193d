"""The schemas of shoal.core.agents as plain classes; importing pydantic would double the time to the user's first line.

tests/unit/agent/test_wire.py checks that every field and default here matches the schemas.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOKEN_HEADER = "X-Shoal-Agent"
INSTANCE_HEADER = "X-Shoal-Instance"
BEAT_INTERVAL_S = 1.0
JOIN_REFUSED = "its agent could not join the server"
"""Start of a node's end reason when the server refused its agent's join request."""
NEVER_STARTED = "its agent was never started"
"""End reason of a node in which no agent signed in, for example because the server was killed while it started one."""
STOP_REASON = "stop-reason"
"""Name of the file in the SDK's spool folder with the reason why the workers are being stopped."""
SAVE_WANTED = "save-wanted"
"""Name of the file in the SDK's spool folder that requests a checkpoint."""

MOST_UNKILLABLE = 100
"""Most processes that a heartbeat names as unkillable."""
PUT_BACK = "SHOAL_PUT_BACK"
"""Environment variable of a job: 0 means do not search its working directory for checkpoints and do not restore any."""
GATEWAY_USER = "agent"
"""User name of an agent at the SSH gateway (its token is the password). No lease can have this name."""
LEASE_HOST, LEASE_PORT = "lease", 22
"""Destination that the gateway requests from an agent to reach its lease."""
DIRECT_HOST = "direct"
"""Host name in the forwarding request that reports the port where an agent accepts direct SSH connections to its lease."""
LEASE_SOCKET = "ssh.sock"
"""Name of the Unix socket of a lease's SSH server, in the folder that the lease shares with its agent."""
GATEWAY_MARK = "gateway"
"""Key option that marks the gateway's own key among the authorized keys of a lease."""
TELL = "shoal-tell"
"""SSH subsystem with which the gateway shows a text in the terminals that do not run through it."""


class _Wire:
    """Base class that copies the known fields of a JSON object and ignores the others; class attributes are the defaults."""

    def __init__(self, data: dict[str, Any]):
        known = type(self).__annotations__
        self.__dict__.update({k: v for k, v in data.items() if k in known})


class Launch(_Wire):
    """Content of a launch file: everything an agent needs to join its attempt."""

    job_id: str
    job_name: str
    attempt_id: str
    attempt: int
    node: int
    token: str
    url: str
    server_file: str | None = None
    instance: str | None = None
    ca: str | None = None
    store_path: str | None = None
    work_dir: str
    cache_dir: str
    python: str
    machine: str
    slots: list[int]
    slot_kind: str = "cpu"
    devices: list[str] = []
    device_files: list[str] = []
    numa: list[int] = []
    cpu_threads: int = 1
    address: str | None = None
    env: dict[str, str] = {}
    place_env: dict[str, str] = {}
    hide: list[str] = []

    @classmethod
    def read(cls, path: Path) -> Launch:
        launch = cls(json.loads(path.read_text()))
        missing = [name for name in cls.__annotations__ if not hasattr(launch, name)]
        if missing:
            raise ValueError(f"{path}: no {', '.join(missing)}")
        return launch


class Mount(_Wire):
    """A dataset, checkpoint or snapshot that is visible to the job at a path."""

    path: str
    manifest_id: str
    name: str


class PutBack(_Wire):
    """A checkpoint to restore before the workers start."""

    id: str
    name: str
    place: str
    manifest_id: str


class PeerNodes(_Wire):
    """Addresses of the nodes that share the data of one manifest."""

    key: str
    own: str
    gang: list[str] = []
    holders: list[str] = []


class JoinReply(_Wire):
    """The server's answer to a join; complete once `ready` is true, which means that all nodes have joined."""

    ready: bool
    num_nodes: int = 1
    entry: list[str] = []
    accels: int = 1
    launcher: str = "direct"
    allow_cpu: bool = False
    one_device_per_worker: bool = False
    master_addr: str = ""
    master_port: int = 0
    source: dict[str, Any] | None = None
    mounts: list[Mount] = []
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    lease: dict[str, Any] | None = None
    neighbours: dict[str, PeerNodes] = {}
    allow_torch_change: bool = False
    put_back: list[PutBack] = []
    folder_mounts: list[str] = []
    is_distributed: bool = False
    sandbox: dict[str, Any] | None = None
    start_barrier: bool = False
    device_wait_s: float = 0.0

    def __init__(self, data: dict[str, Any]):
        super().__init__(data)
        self.mounts = [Mount(m) for m in data.get("mounts", [])]
        self.put_back = [PutBack(p) for p in data.get("put_back", [])]
        self.neighbours = {k: PeerNodes(v) for k, v in data.get("neighbours", {}).items()}

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.accels


class ReadyReply(_Wire):
    """The server's answer to a node that is prepared."""

    go: bool = False
    choose_port: bool = False
    master_addr: str = ""
    master_port: int = 0


class BeatReply(_Wire):
    """The server's answer to a heartbeat."""

    fenced: bool = False
    stop: bool = False
    beat_in_s: float | None = None
    grace_s: float = 10.0
    why: str | None = None
    left_s: float | None = None
    commands: list[dict[str, Any]] = []
