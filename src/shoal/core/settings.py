"""Settings and their sources: a default, then the data directory's settings.toml, then the environment.

ENV_VARS lists every environment variable that Shoal reads; docs/reference/settings.md is checked against it.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from shoal.core.errors import InvalidSpec
from shoal.core.private import close_folder

RENAMED = {"lease_s": "node_timeout_s"}
"""Old names of settings that settings.toml and the API still take, and their present names."""
ENV_VARS: dict[str, str] = {
    "SHOAL_HOME": "Data directory (default ~/.shoal).",
    "SHOAL_URL": "URL of the server. Without it, a private local server is used and started when needed.",
    "SHOAL_API_KEY": "Key to sign in with.",
    "SHOAL_CA": "PEM file (or its text) with the certificates that vouch for the server; no others are then accepted.",
    "SHOAL_WORKSPACE": "Workspace to work in (default: 'default').",
    "SHOAL_NO_AUTOSTART": "Set to 1 to never start the private local server automatically.",
    "SHOAL_PATIENCE_S": "Seconds a command waits for a server whose database is busy or whose disk is full or fails (default 600).",
    "SHOAL_SLOTS": "Slots the server's own machine offers, overriding settings.toml: a number, 'auto' (or 0) or 'none'.",
    "SHOAL_SANDBOX": "Method that provides /input and the other paths: 'auto', 'bubblewrap' or 'rewrite'.",
    "SHOAL_DEBUG": "Set to 1 to see tracebacks instead of one-line errors.",
    "SHOAL_DATA_CACHE": "Directory where `shoal.data` caches chunks (default: cache/stream in the data directory).",
    "SHOAL_DATA_CACHE_GB": "Size of that cache, in GB (default 20).",
    "SHOAL_JOIN": "The token a machine joins the pool with; part of the line `shoal pool join-command` prints.",
    "SHOAL_LOG_LEVEL": "Server and agent log level (default INFO).",
    "SHOAL_TEST_PATIENCE": "Factor for the time limits of tests that use `shoal.testing` (default: measured).",
}
"""Environment variable → description."""


def home() -> Path:
    return Path(os.environ.get("SHOAL_HOME") or "~/.shoal").expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of the data directory."""

    root: Path = field(default_factory=home)

    @property
    def server_dir(self) -> Path:
        return self.root / "server"

    @property
    def server_file(self) -> Path:
        """{pid, url, boot_id, create_time, instance, place}: present while a server runs, or after one was killed."""
        return self.server_dir / "server.json"

    @property
    def starting_file(self) -> Path:
        """The same fields without the URL, plus what the server is doing: present while it starts."""
        return self.server_dir / "starting.json"

    @property
    def instance_file(self) -> Path:
        """{id, dev, ino, path, host}: the identity of this data directory. A copy gets a new one at its first start."""
        return self.server_dir / "instance.json"

    @property
    def server_lock(self) -> Path:
        """Lock file (flock) that the running server holds all the time."""
        return self.server_dir / "server.lock"

    @property
    def server_log(self) -> Path:
        return self.server_dir / "server.log"

    @property
    def database(self) -> Path:
        return self.server_dir / "shoal.db"

    @property
    def reserve(self) -> Path:
        """File that reserves disk space, which is released when the disk is full."""
        return self.server_dir / "reserve"

    @property
    def owner_key(self) -> Path:
        """Key of the owner of the private local server, mode 0600."""
        return self.server_dir / "owner.key"

    @property
    def setup_code(self) -> Path:
        """Code required to create a shared server's first account, mode 0600. It is deleted once that account exists."""
        return self.server_dir / "setup.code"

    @property
    def sign_in_services(self) -> Path:
        """Issuers that people may sign in with, and the server's secrets there, mode 0600."""
        return self.server_dir / "sign_in.toml"

    @property
    def secret_key(self) -> Path:
        """Key with which secrets are encrypted, mode 0600."""
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
        """Create the data directory and restrict it to its owner: it holds the code, data and tokens of all users."""
        for folder in (self.root, self.server_dir, self.store_dir, self.nodes_dir, self.cache_dir):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.root.resolve() != Path.home().resolve():
            close_folder(self.root)
        for path in (*self.private_paths(), self.cache_dir):
            if path.is_dir():
                close_folder(path)

    def private_paths(self) -> list[Path]:
        """List the paths no job may see: keys, the database, other attempts with their tokens, chunks, swarms, engines."""
        folders = [self.root / name for name in ("swarms", "engines", "ray")]
        return [self.server_dir, self.nodes_dir, self.store_dir, self.client_config, *folders]

    @property
    def client_config(self) -> Path:
        """{url, workspace, key} as written by `shoal login` and `shoal workspace use`, mode 0600."""
        return self.root / "client.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The server's settings. `shoal server start` writes those given on its command line to settings.toml."""

    host: str = "127.0.0.1"
    """Address to listen on. With any address other than loopback people need accounts: the owner's key file is not enough."""
    port: int = 0
    """Port to listen on. 0 picks a free port and uses it again after a restart, if possible."""
    shared: bool = False
    """True for a server that many people use, even if it listens on loopback only (behind a reverse proxy)."""
    hosts: str = ""
    """Host names of a shared server, separated by commas; requests from browsers for any other name are refused. Empty: any
    name."""
    tls_cert: str = ""
    """Certificate chain (PEM file) with which the server speaks https, or 'auto' for one that it makes itself, signed by its
    private CA (server/tls_ca.pem). Empty: plain http."""
    tls_key: str = ""
    """Private key (PEM file) of tls_cert; not needed with 'auto'."""
    behind_proxy: str = ""
    """Address of the reverse proxy in front of a shared server, or several separated by commas. Only its X-Forwarded headers
    are believed, and other machines are refused."""
    allow_clear_text: bool = False
    """Allow plain http on an address other than loopback. Passwords and keys can then be read on the network."""
    slots: int | None = None
    """Slots this machine offers. "auto" (or 0, as in 0.1): its GPUs, or half its cores (at least one) if it has none. "none":
    no job runs here."""
    sign_up: bool = False
    """Allow everyone who can reach the server to create an account; otherwise only an admin can."""
    store: str = ""
    """Storage for chunks: empty for the data directory, or s3://bucket/prefix?endpoint=…&region=… (keys from AWS_*)."""
    node_timeout_s: float = 30.0
    """Node timeout: seconds without a heartbeat after which a node counts as lost. Long enough to survive a slow disk, short enough for a
    decision within a minute."""
    stop_grace_s: float = 10.0
    """Seconds between SIGTERM and SIGKILL when a job is stopped."""
    device_wait_s: float = 60.0
    """Seconds for which a node of a shared server waits until others have freed the memory of its accelerators. After that the
    devices are drained and the job continues on others. 0: jobs start in any case, as on a private server."""
    start_timeout_s: float = 120.0
    """Seconds an agent may take from its start to its first message."""
    max_source_mb: int = 512
    """Largest source (code) of a job, in MiB. Data belongs in datasets."""
    max_import_gb: int = 200
    """Largest dataset the server fetches from a URL, in GB."""
    max_archive_ratio: int = 100
    """Largest ratio of unpacked to packed bytes an archive may have."""
    disk_reserve_mb: int = 8
    """Disk space reserved next to the database, in MiB, so that jobs can still be stopped, finished and deleted on a full disk.
    0: none."""
    full_disk_end_s: float = 60.0
    """Seconds of a full disk after which the job whose files filled it is ended. 0: never."""
    busy_after_s: float = 1.0
    """Seconds a request waits for the database. Then it is refused (503, "busy") and may be repeated, so that reads stay fast."""
    backup_to: str = ""
    """Place of the scheduled backups: a folder (on another disk) or s3://bucket/prefix?endpoint=…&region=…; empty: none are
    made."""
    backup_every_h: float = 24.0
    """Hours between two scheduled backups."""
    backup_keep: int = 7
    """Number of backups that are kept; older ones of this server are removed."""
    backup_keys: bool = True
    """Include secret.key and the other key files in scheduled backups. Without them, restored secrets must be set again."""
    log_rate_kb_s: int = 2048
    """Largest log rate per node, in KiB per second, after a burst of eight seconds' worth. Further bytes are counted and
    dropped."""
    warm: bool = True
    """Start single-worker jobs that follow each other closely in an interpreter that has torch loaded, if their script cannot
    notice the difference."""
    git_timeout_s: float = 120.0
    """Seconds a git fetch may take."""
    git_hosts: str = ""
    """Git hosts inside private networks that users of a shared server may fetch code from, separated by commas:
    'git.example.lan' (standard ports), 'git.example.lan:3000', '10.0.0.5:8443'. Public hosts need no entry."""
    queue_half_life_h: float = 24.0
    """Hours after which past use of a workspace counts only half as much against it in the queue."""
    queue_patience_h: float = 24.0
    """Longest wait in hours of a job whose workspace has nothing running; then it is next, regardless of priorities."""
    queue_preempt: bool = True
    """Allow a job to preempt jobs of lower priority if there is not enough room: these save, end and wait."""
    queue_grow_s: float = 300.0
    """Shortest run time in seconds of an attempt of a job with --grow before it is saved and restarted with more nodes."""
    stall_s: float = 300.0
    """Seconds without a log line, metric or step after which the stacks of a running job are collected. 0: never."""
    stall_timeout_s: float = 3600.0
    """Seconds without a log line, metric or step after which an attempt whose ranks demonstrably do nothing is stopped and
    restarted; sooner if they wait for a rank that hangs. A job's own --stall-timeout takes precedence. 0: never."""
    torch_index: str = ""
    """Indexes of torch's builds for machines of the pool, by kind of their slots: 'cuda=https://mirror/whl/cu128,
    rocm=https://mirror/whl/rocm6.4'. Kinds that are not named get the server's own build from pytorch.org, or PyPI's."""
    wheelhouse: str = ""
    """Directory of wheels on the machines of the pool, or its URL, from which `pool add` installs everything, for sites without
    internet; empty: from PyPI."""
    preflight_after_h: float = 1.0
    """Run time in hours (time limit or expected duration) from which a job is tested by a preflight first; jobs on several
    nodes always are. 0: no preflights."""
    preflight_limit_s: float = 300.0
    """Seconds a preflight may take, not counting the set-up of its environment."""
    job_sandbox: str = ""
    """Weakest sandbox level of a job, S0 to S3. On machines that cannot provide it, jobs do not start. Empty: S3 on a shared
    server; on a private one jobs see the files of the server's user (S1), as far as the machine allows. S0: no sandbox, on a
    private server only."""
    job_egress: str = "open"
    """Destinations that jobs with their own network may connect to: 'open' for public addresses (through a proxy), 'none', or
    host names separated by commas ('pypi.org,*.huggingface.co')."""
    job_disk_gb: int = 0
    """Disk space a node of a job may use, in GiB, unless it has its own --disk. 0: no limit."""
    lease_sandbox: str = ""
    """Weakest sandbox level of a lease, S0 to S3. On machines that cannot provide it, leases do not start. Empty: S3 on a
    shared server, any level on a private one."""
    lease_disk_gb: int = 20
    """Size of a lease's volume, in GiB."""
    lease_egress: str = "open"
    """Destinations leases may connect to: 'open' for public addresses (through a proxy), 'none' for no outside connections."""
    snapshot_days: int = 14
    """Days for which the snapshot of an ended lease is kept."""
    ssh_host: str = ""
    """Address the SSH gateway listens on; empty: the same as the server."""
    ssh_port: int = 0
    """Port of the SSH gateway; 0 picks a free port and keeps it."""
    ssh_direct: bool = True
    """Also open a port for each lease on its own machine, at the address from which the machine reaches the server; keys and
    certificates only."""
    ssh_passwords: bool = False
    """Also allow passwords, generated by the server, for leases; otherwise only keys and certificates."""
    smtp_url: str = ""
    """Mail server for lost passwords, notifications and reminders: smtp://user:password@mail.example.org, or smtps://…; empty:
    no mail is sent."""
    mail_from: str = ""
    """Sender address of the mails; empty: shoal@ that server."""
    jupyter_ports: str = ""
    """Range of ports for the JupyterLab of running jobs, one for each, as '41000-41099'; empty picks free ones."""
    jupyter_url: str = ""
    """URL of these ports for browsers if a TLS proxy is in front of them, with {port} in it:
    https://jupyter-{port}.example.org."""
    currency: str = "EUR"
    """Currency of the prices, three capital letters."""
    price_cpu: float = 0.0
    """Price of a CPU slot for an hour. New prices apply to attempts that start later."""
    price_cuda: float = 0.0
    """Price of an NVIDIA GPU for an hour."""
    price_rocm: float = 0.0
    """Price of an AMD GPU for an hour."""
    price_xpu: float = 0.0
    """Price of an Intel GPU for an hour."""
    price_models: str = ""
    """Prices of models of GPUs for an hour, which go before those of their kind: `H100=3.50, A100 80GB=2`."""

    @classmethod
    def load(cls, layout: Layout, **overrides: Any) -> ServerSettings:
        """Return the settings from settings.toml, the environment and `overrides`; later sources win, None is ignored."""
        values = _read(layout)
        if slots := os.environ.get("SHOAL_SLOTS"):
            values["slots"] = _slots(slots, "SHOAL_SLOTS")
        given = {k: v for k, v in overrides.items() if v is not None}
        if given.get("slots") == "auto":
            given["slots"] = None
        return cls(**_known(layout, values | given))

    @classmethod
    def stored(cls, layout: Layout) -> ServerSettings:
        """Return the settings of settings.toml, ignoring the environment."""
        return cls(**_known(layout, _read(layout)))

    def save(self, layout: Layout) -> None:
        """Write the settings that differ from the defaults to settings.toml."""
        import tomli_w

        default = ServerSettings()
        values = {
            f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != getattr(default, f.name)
        }
        if values.get("slots") == 0:
            values["slots"] = "none"
        layout.server_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = layout.settings_file.with_suffix(".new")
        aside.write_text(tomli_w.dumps(values), encoding="utf-8")
        aside.replace(layout.settings_file)


def _read(layout: Layout) -> dict[str, Any]:
    values = tomllib.loads(layout.settings_file.read_text()) if layout.settings_file.exists() else {}
    for old, new in RENAMED.items():
        if old in values:
            values.setdefault(new, values.pop(old))
            values.pop(old, None)
    if "slots" in values:
        values["slots"] = _slots(values["slots"], f"{layout.settings_file}: slots")
    return values


def _slots(value: object, where: str) -> int | None:
    """Return a number of slots from settings.toml or SHOAL_SLOTS; None means automatic. There, 0 has meant "auto" since 0.1."""
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
