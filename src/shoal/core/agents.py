"""What an agent and the server say to each other. An agent speaks for one node of one attempt and holds a token for just that."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from shoal.core.artifacts import Manifest
from shoal.core.jobs import Progress
from shoal.core.schema import Int64, Schema, View
from shoal.core.states import NodeState

TOKEN_HEADER = "X-Shoal-Agent"
INSTANCE_HEADER = "X-Shoal-Instance"
BEAT_INTERVAL_S = 1.0
STREAMS = ("log", "system", "metric")


class Launch(Schema):
    """The file (mode 0600) an engine hands to the agent it starts; all else comes from `join`."""

    job_id: str
    job_name: str
    attempt_id: str
    attempt: int
    node: int
    token: str
    url: str
    server_file: str | None = None
    """On the server's own machine: where the present URL stands, should the server come back elsewhere."""
    instance: str | None = None
    """Id of the server's data directory: a server of another one does not take this agent's reports."""
    store_path: str | None = None
    """On the server's own machine: the store's directory, read without going through HTTP."""
    work_dir: str
    """This node's own directory: spool, source, outputs. Survives the agent."""
    cache_dir: str
    """Environments and data shared by all agents of this machine and user."""
    python: str
    """The runtime interpreter user code runs on (or a venv layered on it)."""
    machine: str
    slots: list[int]
    slot_kind: str = "cpu"
    cpu_threads: int = Field(default=1, ge=1)
    """Default OMP_NUM_THREADS of a worker."""
    address: str | None = None
    """Where the other nodes reach this one, if not at the address it reaches the server from."""
    hide: list[str] = []
    """Directories no worker shall see: the server's own, should a shared file system bring it here."""


class JoinRequest(Schema):
    pid: Int64
    boot_id: str
    host: str
    address: str
    """Where the other nodes reach this one."""
    port: Int64
    """A free port here, for the rendezvous should this be node 0."""
    machine: str | None = None
    """Where it has come to be: not all engines leave that to the scheduler."""
    giver_port: int | None = Field(default=None, ge=1, le=65535)
    """A free port here, for other nodes to get data at; None: it reads the store itself."""
    process: str | None = Field(default=None, max_length=100)
    """A random word that only this process knows: what is handed out by a join goes to no other."""


class Mount(View):
    """An artifact to provide inside the job; its manifest comes from the store by id."""

    path: str
    """Inside the job: /input/<name>, /input-checkpoint."""
    manifest_id: str
    name: str


class Neighbours(View):
    """Who else has the data of a mount, or is getting it now, as `host:port`."""

    key: str
    """Of this manifest in this workspace: proves to other nodes that one may have its chunks."""
    own: str
    """This node, as the others were told of it."""
    gang: list[str] = []
    """All nodes of the attempt that give, this one among them."""
    holders: list[str] = []
    """Nodes of other attempts that have all of it."""


class PutBack(View):
    """A checkpoint of an earlier attempt that a node finds again where the script wrote it."""

    id: str
    name: str
    """The name of the checkpoint: a folder of the output directory, '.' for its files, workdir/FOLDER …"""
    place: str
    """'output' or 'workdir'."""
    manifest_id: str


class LeaseOrder(View):
    """What the agent of a lease needs to bring people to it."""

    id: str
    login: str
    left_s: float
    gateway_port: int
    gateway_key: str
    """The public key by which the gateway is known."""
    least: str = "S0"
    """The weakest sandbox it may have (shoal.agent.confine)."""
    disk_mb: int = 10_240
    egress: str = "open"
    direct: bool = False
    """Whether people may come to the machine itself, where they can."""


class JoinReply(View):
    """`ready` is false until every node of the gang has joined: ask again."""

    ready: bool
    num_nodes: int = 1
    entry: list[str] = []
    accels: int = 1
    launcher: Literal["direct", "torchrun"] = "direct"
    allow_cpu: bool = False
    """Workers may train on the CPU where torch cannot use the accelerator of their slot."""
    master_addr: str = ""
    master_port: int = 0
    source: Manifest | None = None
    mounts: list[Mount] = []
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Environment name → value. Never written to disk by the agent."""
    lease: LeaseOrder | None = None
    """Set if what runs here is a lease's SSH server."""
    neighbours: dict[str, Neighbours] = {}
    """By manifest id."""
    allow_torch_change: bool = False
    put_back: list[PutBack] = []
    """Oldest first."""
    is_distributed: bool = False
    """The job may have several workers in another attempt, so a single one is told its rank too."""


class BeatRequest(Schema):
    state: NodeState
    exit_code: Int64 | None = None
    """The first failing worker's (negative for a signal), or 0."""
    failed_rank: Int64 | None = None
    told: bool = False
    """The workers ended because the agent was told to end them, not by themselves."""
    reason: str | None = None
    """One line for people, when exited: the last line of the traceback, the pip error, …"""
    progress: Progress | None = None
    paths: str | None = None
    put_back: list[str] = []
    """For people: what was put back where, and what could not be."""
    preflight: dict[str, Any] | None = None
    """What a preflight has found (see PreflightReport), when exited."""
    final: bool = False
    """True once the spool is empty and the agent is about to leave."""


class BeatReply(View):
    fenced: bool = False
    """A newer attempt took over: kill the workers, ship the logs, leave."""
    stop: bool = False
    """Stop the workers: SIGTERM, then SIGKILL after `grace_s`."""
    beat_in_s: float | None = None
    """Ask again after so long: all nodes of a gang are to hear of a stop at the same moment."""
    grace_s: float = 10.0
    why: str | None = None
    """Why it is to stop, for the script to know."""
    left_s: float | None = None
    """Of a lease: seconds until it ends."""
    commands: list[dict[str, Any]] = []


class SegmentReply(View):
    next_seq: int
    """All records below this are durable."""


class SpoolRecord(View):
    """One record of a segment (a JSON line). Logs use t, r, e, m; other streams carry their own keys."""

    s: int
    t: float
    r: int | None = None
    e: Literal["out", "err", "sys"] = "out"
    m: str = ""
