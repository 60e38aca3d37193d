"""Messages between an agent and the server.

An agent acts for one node of one attempt, and its token is valid for that node only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from shoal.core.artifacts import Manifest
from shoal.core.jobs import Progress
from shoal.core.schema import MOST_TIME_S, Int64, Schema, View
from shoal.core.states import NodeState

TOKEN_HEADER = "X-Shoal-Agent"
INSTANCE_HEADER = "X-Shoal-Instance"
BEAT_INTERVAL_S = 1.0
STREAMS = ("log", "system", "metric")


class Launch(Schema):
    """The file (mode 0600) an engine writes for the agent it starts.

    Everything else the agent needs is in the reply to `join`.
    """

    job_id: str
    job_name: str
    attempt_id: str
    attempt: int
    node: int
    token: str
    url: str
    server_file: str | None = None
    """Path of the file with the server's current URL, for the case that a restarted server has another one. Set only on the
    server's own machine."""
    instance: str | None = None
    """Id of the server's data directory. A server with another data directory refuses this agent's reports."""
    ca: str | None = None
    """Certificate (PEM text) of the CA that vouches for an https server; None: one of those that the machine trusts."""
    store_path: str | None = None
    """Directory of the store, which the agent then reads directly instead of over HTTP. Set only on the server's own
    machine."""
    work_dir: str
    """This node's own directory for the outbox, the source and the outputs. It outlives the agent."""
    cache_dir: str
    """Directory of environments and data shared by all agents of this user on this machine."""
    python: str
    """Interpreter that runs the user's code, directly or through a virtual environment layered on it."""
    machine: str
    slots: list[int]
    slot_kind: str = "cpu"
    devices: list[str] = []
    """UUID of the accelerator of each slot, or its number in PCI order; empty if `slots` are the numbers."""
    device_files: list[str] = []
    """Files below /dev that these accelerators need; empty if unknown."""
    numa: list[int] = []
    """NUMA node of the accelerator of each slot, -1 if unknown; empty if none is known."""
    cpu_threads: int = Field(default=1, ge=1)
    """Default of OMP_NUM_THREADS for each worker."""
    address: str | None = None
    """Address at which the other nodes reach this one; None: the address from which it reaches the server."""
    env: dict[str, str] = {}
    """Variables of the engine's cluster that scripts see."""
    place_env: dict[str, Literal["rank", "local_rank", "node", "world_size", "accels", "num_nodes"]] = {}
    """Variable of the engine's cluster → the place of a worker that it holds."""
    hide: list[str] = []
    """Directories that workers must not see: those of the server, which a shared file system may show on this machine."""


class JoinRequest(Schema):
    """The first message of an agent: where it runs and how other nodes reach it."""

    pid: Int64
    boot_id: str
    host: str
    address: str
    """Address at which the other nodes reach this one."""
    port: Int64
    """A free port on this machine, used for the rendezvous if this is node 0."""
    machine: str | None = None
    """Machine the agent runs on, for engines that choose it themselves instead of leaving it to the scheduler."""
    giver_port: int | None = Field(default=None, ge=1, le=65535)
    """A free port on this machine at which other nodes can fetch data; None if the agent reads the store directly."""
    process: str | None = Field(default=None, max_length=100)
    """A random string known only to this process. The server gives the secrets of this join to no other process."""


class Mount(View):
    """An artifact to provide inside the job. The agent fetches its manifest from the store by id."""

    path: str
    """Path inside the job: /input/<name> or /input-checkpoint."""
    manifest_id: str
    name: str


class PeerNodes(View):
    """Other nodes that have the data of a mount or are fetching it now, each as `host:port`."""

    key: str
    """Key for this manifest in this workspace. It proves to other nodes that the holder may read the manifest's chunks."""
    own: str
    """Address of this node, as the other nodes know it."""
    gang: list[str] = []
    """All nodes of the attempt that share data, including this one."""
    holders: list[str] = []
    """Nodes of other attempts that have the complete data."""


class PutBack(View):
    """A checkpoint of an earlier attempt that is restored to the place where the script wrote it."""

    id: str
    name: str
    """Name of the checkpoint: a folder of the output directory, '.' for files directly in it, or workdir/FOLDER."""
    place: str
    """Place to restore it to: 'output' or 'workdir'."""
    manifest_id: str


class LeaseInstructions(View):
    """Settings an agent needs to run a lease's SSH server."""

    id: str
    login: str
    left_s: float
    gateway_port: int
    gateway_key: str
    """Public key of the SSH gateway."""
    least: str = "S0"
    """Weakest sandbox level allowed (see shoal.agent.sandbox.confine)."""
    disk_mb: int = 10_240
    volume_key: str | None = None
    """Key of the lease's volume, 64 bytes in hexadecimal; None: it is not encrypted."""
    egress: str = "open"
    direct: bool = False
    """True if people may connect to the machine directly, without the gateway."""


class JobLimits(View):
    """Limits of one node of a job. 0: the default of its sandbox."""

    memory: int = 0
    """Bytes of memory."""
    cpus: int = 0
    """CPUs, in hundredths."""
    disk: int = 0
    """Bytes the job may write below its folders."""
    shm: int = 0
    """Bytes of /dev/shm."""
    pids: int = 0
    """Processes and threads."""


class SandboxRequirements(View):
    """The sandbox a server requires for a job (see shoal.agent.sandbox.job)."""

    least: Literal["off", "S0", "S1", "S2", "S3"] = "S0"
    """Weakest level allowed; 'off': no sandbox."""
    files: Literal["machine", "own"] = "machine"
    """Files the job sees: those of the server's user, or only its own."""
    egress: Literal["none", "open", "list"] = "open"
    """Destinations of a job with its own network: none, public addresses, or the hosts in `allow`."""
    allow: list[str] = []
    limits: JobLimits = JobLimits()


class JoinReply(View):
    """The reply to `join`. While `ready` is false, other nodes of the attempt have not joined yet: send `join` again."""

    ready: bool
    num_nodes: int = 1
    entry: list[str] = []
    accels: int = 1
    launcher: Literal["direct", "torchrun"] = "direct"
    allow_cpu: bool = False
    """True if workers may train on the CPU when torch cannot use the accelerator of their slot."""
    one_device_per_worker: bool = False
    """True if each worker sees only its own accelerator."""
    master_addr: str = ""
    master_port: int = 0
    source: Manifest | None = None
    mounts: list[Mount] = []
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Environment name → value. The agent never writes them to disk."""
    lease: LeaseInstructions | None = None
    """Settings of the lease, if this job holds one."""
    neighbours: dict[str, PeerNodes] = {}
    """Manifest id → nodes that have its data."""
    allow_torch_change: bool = False
    put_back: list[PutBack] = []
    """Checkpoints to restore, oldest first."""
    folder_mounts: list[str] = []
    """Buckets and folders that the job sees (see shoal.core.folder_mounts)."""
    is_distributed: bool = False
    """True if another attempt of the job may have several workers; a single worker then gets its rank in the environment
    too."""
    sandbox: SandboxRequirements | None = None
    """Sandbox of the job. None from a server older than this agent: as on a private server."""
    start_barrier: bool = False
    """True if the workers start only after a reply to `ready` with `go`; its address and port replace those given here."""
    device_wait_s: float = 0.0
    """Seconds to wait until the memory of the node's accelerators is free; 0: start in any case."""


class ReadyRequest(Schema):
    """The message of an agent whose node is prepared and waits for the rest of its gang."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """A port that is free on node 0 at this moment, sent after a reply with `choose_port`."""


class ReadyReply(View):
    """The reply to `ready`. While `go` is false, send `ready` again."""

    go: bool
    """True if all nodes are prepared: start the workers now, with the address below."""
    choose_port: bool = False
    """True if all nodes are prepared and this one, node 0, has to name a free port."""
    master_addr: str = ""
    master_port: int = 0


class GpuGauge(Schema):
    """Measured values of one GPU; a field is None if the device does not tell it."""

    i: int
    """Its number in PCI order."""
    part: int | None = None
    """Number of a MIG slice on its GPU; None for a whole GPU."""
    uuid: str = Field(max_length=200)
    """UUID, or the PCI address if it has none."""
    util: float | None = None
    """Share of the time in which it computed, in percent."""
    mem: float | None = None
    """Bytes of its memory in use."""
    mem_total: float | None = None
    watts: float | None = None
    watts_max: float | None = None
    """Power limit."""
    celsius: float | None = None
    mhz: float | None = None
    """Clock of its processors."""
    mhz_max: float | None = None
    ecc: float | None = None
    """Uncorrectable ECC errors since the last reset."""
    throttled: float | None = None
    """1 while heat or the power supply slows it down, else 0."""
    nvlinks: float | None = None
    """Active NVLink connections."""
    nvlink_errors: float | None = None
    xid: int | None = None
    """Number of the NVIDIA driver's last error report about it (Xid) while the job ran."""


class BeatRequest(Schema):
    """A heartbeat: the state of the node, and its result once it has exited."""

    state: NodeState
    exit_code: Int64 | None = None
    """Exit code of the first worker that failed (negative for a signal), or 0."""
    failed_rank: Int64 | None = None
    told: bool = False
    """True if the workers ended because the agent was instructed to stop them, not by themselves."""
    reason: str | None = None
    """Reason in one line, once the node has exited: the last line of the traceback, the pip error, …"""
    progress: Progress | None = None
    paths: str | None = None
    sandbox: str | None = Field(default=None, max_length=1000)
    """Level of the job's sandbox, with what is missing."""
    put_back: list[str] = []
    """Lines for people: which checkpoints were restored where, and which could not be."""
    preflight: dict[str, Any] | None = None
    """Results of a preflight (see PreflightReport), once the node has exited."""
    gpus: list[GpuGauge] = Field(default=[], max_length=1024)
    """Newest measured values of the node's GPUs, if there are new ones."""
    notices: list[Annotated[str, Field(max_length=500)]] = Field(default=[], max_length=100)
    """All lines for people about the use of this node's GPUs so far."""
    unkillable: list[Int64] = Field(default=[], max_length=100)
    """Processes of the node that could not be killed, once it has exited."""
    warnings: list[Annotated[str, Field(max_length=500)]] = Field(default=[], max_length=100)
    """All warnings of this node about the attempt so far, such as a checkpoint that the script does not read."""
    stalled_s: float = Field(default=0.0, ge=0, le=MOST_TIME_S)
    """Seconds for which the agent itself has stood still so far, because its machine was overloaded or suspended."""
    final: bool = False
    """True once the outbox is empty and the agent is about to exit."""


class BeatReply(View):
    """The answer to a heartbeat: whether to continue, and commands for the agent."""

    fenced: bool = False
    """A newer attempt has replaced this one: kill the workers, send the remaining logs, exit."""
    stop: bool = False
    """Stop the workers: SIGTERM, then SIGKILL after `grace_s`."""
    beat_in_s: float | None = None
    """Seconds until the next heartbeat, if it should differ from the usual interval: all nodes of an attempt then learn of a
    stop at the same time."""
    grace_s: float = 10.0
    why: str | None = None
    """Reason for the stop, passed on to the script."""
    left_s: float | None = None
    """Seconds until the lease ends; None if this is not a lease."""
    commands: list[dict[str, Any]] = []


class SegmentReply(View):
    """The answer to a segment of records."""

    next_seq: int
    """Sequence number of the next record the server expects; all records below it are stored durably."""


class SpoolRecord(View):
    """One record of a segment (a JSON line). Log records use t, r, e and m; other streams have keys of their own."""

    s: int
    t: float
    r: int | None = None
    e: Literal["out", "err", "sys"] = "out"
    m: str = ""
