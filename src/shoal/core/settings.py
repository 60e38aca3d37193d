"""Settings and where they come from: a default, the data directory's settings.toml, then the environment.

Every environment variable Shoal reads stands in ENV_VARS; docs/reference/settings.md is checked against it.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from shoal.core.errors import InvalidSpec
from shoal.core.private import close_folder

ENV_VARS: dict[str, str] = {
    "SHOAL_HOME": "Data directory (default ~/.shoal).",
    "SHOAL_URL": "Server to talk to. Without it, a private local server is used and started when needed.",
    "SHOAL_API_KEY": "Key to sign in with.",
    "SHOAL_WORKSPACE": "Workspace to work in (default: 'default').",
    "SHOAL_NO_AUTOSTART": "Set to 1 to never start the private local server by itself.",
    "SHOAL_SLOTS": "Slots the server's own machine offers, overriding settings.toml: a number, 'auto' (or 0) or 'none'.",
    "SHOAL_SANDBOX": "How /input and friends are provided: 'auto', 'bubblewrap' or 'rewrite'.",
    "SHOAL_DEBUG": "Set to 1 to see tracebacks instead of one-line errors.",
    "SHOAL_DATA_CACHE": "Where `shoal.data` keeps chunks it has read (default: cache/stream in the data directory).",
    "SHOAL_DATA_CACHE_GB": "How much of them it keeps, in GB (default 20).",
    "SHOAL_JOIN": "The token a machine joins the pool with; part of the line `shoal pool join-command` prints.",
    "SHOAL_LOG_LEVEL": "Server and agent log level (default INFO).",
    "SHOAL_TEST_PATIENCE": "Factor for the time limits of tests that use `shoal.testing` (default: measured).",
}


def home() -> Path:
    return Path(os.environ.get("SHOAL_HOME") or "~/.shoal").expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things live in the data directory."""

    root: Path = field(default_factory=home)

    @property
    def server_dir(self) -> Path:
        return self.root / "server"

    @property
    def server_file(self) -> Path:
        """{pid, url, boot_id, create_time, instance, place}: present while a server runs (or died without saying so)."""
        return self.server_dir / "server.json"

    @property
    def starting_file(self) -> Path:
        """The same without a URL, and what the server is doing: present while it starts."""
        return self.server_dir / "starting.json"

    @property
    def instance_file(self) -> Path:
        """{id, dev, ino, path, host}: the identity of this data directory. A copy of it gets another when it is first started."""
        return self.server_dir / "instance.json"

    @property
    def server_lock(self) -> Path:
        """Held (flock) by the running server for its whole life."""
        return self.server_dir / "server.lock"

    @property
    def server_log(self) -> Path:
        return self.server_dir / "server.log"

    @property
    def database(self) -> Path:
        return self.server_dir / "shoal.db"

    @property
    def reserve(self) -> Path:
        """Disk space kept back for what must work on a full disk."""
        return self.server_dir / "reserve"

    @property
    def owner_key(self) -> Path:
        """Key of the private local server's owner, mode 0600."""
        return self.server_dir / "owner.key"

    @property
    def setup_code(self) -> Path:
        """What a shared server's first account is made with, mode 0600; gone once there is one."""
        return self.server_dir / "setup.code"

    @property
    def secret_key(self) -> Path:
        """Key that secrets are encrypted with, mode 0600."""
        return self.server_dir / "secret.key"

    @property
    def settings_file(self) -> Path:
        return self.server_dir / "settings.toml"

    @property
    def store_dir(self) -> Path:
        return self.root / "store"

    @property
    def nodes_dir(self) -> Path:
        return self.root / "nodes"

    @property
    def cache_dir(self) -> Path:
        return self.root / "cache"

    def close(self) -> None:
        """Make the data directory its owner's only, whoever made it: it holds code, data and tokens of everybody."""
        for folder in (self.root, self.server_dir, self.store_dir, self.nodes_dir, self.cache_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.root.resolve() != Path.home().resolve():
            close_folder(self.root)
        for path in (*self.private_paths(), self.cache_dir):
            if path.is_dir():
                close_folder(path)

    def private_paths(self) -> list[Path]:
        """List the paths no job may see: keys and database, other attempts and their tokens, chunks, state of swarms and engines."""
        folders = [self.root / name for name in ("swarms", "engines", "ray")]
        return [self.server_dir, self.nodes_dir, self.store_dir, self.client_config, *folders]

    @property
    def client_config(self) -> Path:
        """{url, workspace, key} written by `shoal login` and `shoal workspace use`, mode 0600."""
        return self.root / "client.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The server's settings; `shoal server start` writes the ones given on its command line to settings.toml."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs accounts: the owner file does not open it."""
    port: int = 0
    """Port to listen on; 0 picks a free one and keeps to it on restart where possible."""
    shared: bool = False
    """True for a server many people use, even if it listens on loopback only (behind a reverse proxy)."""
    hosts: str = ""
    """Names people reach a shared server by, with commas between; a browser that asks for any other is refused. Empty takes any."""
    slots: int | None = None
    """Slots this machine offers; "auto" (or 0, as in 0.1): its GPUs, or half its cores (at least one) where it has none. "none": no job runs here."""
    sign_up: bool = False
    """Whether anyone who can reach the server may make an account; else only an admin can."""
    store: str = ""
    """Where chunks are kept: empty for the data directory, or s3://bucket/prefix?endpoint=…&region=… (keys from AWS_*)."""
    lease_s: float = 30.0
    """Seconds without a beat after which a node is held lost. Long enough for a paused disk, short enough to decide within a minute."""
    stop_grace_s: float = 10.0
    """Seconds between SIGTERM and SIGKILL when a job is stopped."""
    start_timeout_s: float = 120.0
    """Seconds an agent may take from its start to its first word."""
    max_source_mb: int = 512
    """Largest source (code) a job may bring, in MiB; data belongs into datasets."""
    max_import_gb: int = 200
    """Largest dataset the server fetches from a URL by itself, in GB."""
    max_archive_ratio: int = 100
    """Largest ratio of unpacked to packed bytes an archive may have."""
    disk_reserve_mb: int = 8
    """Disk space kept back beside the database, in MiB: on a full disk jobs can still be stopped, finished and deleted. 0 keeps none."""
    log_rate_kb_s: int = 2048
    """Log bytes per second and node kept, in KiB, beyond a burst of eight seconds' worth; the rest is counted and dropped."""
    warm: bool = True
    """Whether jobs of one worker that follow each other closely start in an interpreter with torch loaded, where they cannot tell."""
    git_timeout_s: float = 120.0
    """Seconds a git fetch may take."""
    queue_half_life_h: float = 24.0
    """Hours after which what a workspace has used counts half as much against it in the queue."""
    queue_patience_h: float = 24.0
    """Hours a job of a workspace with nothing running waits at most before it is next, whatever the priorities."""
    queue_preempt: bool = True
    """Whether a job may make jobs of lower priority save, end and wait, when there is too little room for it."""
    queue_grow_s: float = 300.0
    """Seconds an attempt of a job with --grow runs at least before it is saved and started again with more nodes."""
    stall_s: float = 300.0
    """Seconds without a line, a metric or a step after which a running job's stacks are gathered; 0 never does."""
    stall_timeout_s: float = 3600.0
    """Seconds without a line, a metric or a step after which an attempt whose ranks demonstrably do nothing is ended and started again; sooner
    where they wait for one that hangs. A job's own --stall-timeout goes before. 0 never does."""
    preflight_after_h: float = 1.0
    """Hours a job may run, by its time limit or as expected, before it is tried by a preflight first; jobs over one node always are. 0: none is."""
    preflight_limit_s: float = 300.0
    """Seconds a preflight may take, besides setting up its environment."""
    lease_sandbox: str = ""
    """Weakest sandbox a lease may have, S0 to S3; elsewhere it does not start. Empty: S3 on a shared server, any on a private one."""
    lease_disk_gb: int = 20
    """Size of a lease's volume, in GiB."""
    lease_egress: str = "open"
    """Where leases may connect to: 'open' for public addresses (through a proxy), 'none' for nothing outside."""
    snapshot_days: int = 14
    """Days the snapshot of a lease that has ended is kept, to be restored on another."""
    ssh_host: str = ""
    """Address the SSH gateway to leases listens on; empty: the same as the server."""
    ssh_port: int = 0
    """Port of the SSH gateway; 0 picks a free one and keeps to it."""
    ssh_direct: bool = True
    """Whether a lease also has a port on its own machine, at the address by which that reaches the server; keys and certificates only."""
    ssh_passwords: bool = False
    """Whether a lease may also be opened by a password, made by the server; else by keys and certificates only."""
    smtp_url: str = ""
    """Server that sends reminders by e-mail: smtp://user:password@mail.example.org, or smtps://…; empty: none are sent."""
    mail_from: str = ""
    """Who they come from; empty: shoal@ that server."""
    jupyter_ports: str = ""
    """Ports JupyterLab of running jobs is reached by, one for each, as '41000-41099'; empty picks free ones."""
    jupyter_url: str = ""
    """How browsers reach these ports where TLS is before them, with {port} in it: https://jupyter-{port}.example.org."""
    currency: str = "EUR"
    """What prices are in, as three capital letters."""
    price_cpu: float = 0.0
    """Price of a CPU slot for an hour. A change of prices holds for attempts that start later."""
    price_cuda: float = 0.0
    """Price of an NVIDIA GPU for an hour."""
    price_rocm: float = 0.0
    """Price of an AMD GPU for an hour."""
    price_xpu: float = 0.0
    """Price of an Intel GPU for an hour."""

    @classmethod
    def load(cls, layout: Layout, **overrides: Any) -> ServerSettings:
        values = _read(layout)
        if slots := os.environ.get("SHOAL_SLOTS"):
            values["slots"] = _slots(slots, "SHOAL_SLOTS")
        given = {k: v for k, v in overrides.items() if v is not None}
        if given.get("slots") == "auto":
            given["slots"] = None
        return cls(**_known(layout, values | given))

    @classmethod
    def stored(cls, layout: Layout) -> ServerSettings:
        """What settings.toml says, whatever the environment does."""
        return cls(**_known(layout, _read(layout)))

    def save(self, layout: Layout) -> None:
        """Write what differs from the defaults."""
        default = ServerSettings()
        lines = [
            f"{f.name} = {_toml('none' if (f.name, getattr(self, f.name)) == ('slots', 0) else getattr(self, f.name))}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(default, f.name)
        ]
        layout.server_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = layout.settings_file.with_suffix(".new")
        aside.write_text("\n".join(lines) + "\n")
        aside.replace(layout.settings_file)


def _read(layout: Layout) -> dict[str, Any]:
    values = tomllib.loads(layout.settings_file.read_text()) if layout.settings_file.exists() else {}
    if "slots" in values:
        values["slots"] = _slots(values["slots"], f"{layout.settings_file}: slots")
    return values


def _slots(value: object, where: str) -> int | None:
    """A number of slots as it is written in settings.toml or SHOAL_SLOTS. There, 0 has meant "detect" since 0.1."""
    if value in ("none", "auto"):
        return 0 if value == "none" else None
    text = str(value)
    if not text.isascii() or not text.isdigit():
        raise InvalidSpec(f"{where}: {text!r} is not a number of slots.", hint="a number, 'auto' or 'none'")
    return int(text) or None


def _known(layout: Layout, values: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(ServerSettings)}
    for key in values:
        if key not in names:
            raise InvalidSpec(f"{layout.settings_file}: unknown setting {key!r}.")
    return values


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
