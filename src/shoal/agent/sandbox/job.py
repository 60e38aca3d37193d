"""The sandbox of a job, with the same parts as that of a lease: user, cgroup, namespaces, system call filter, egress proxy.

The requirements of the server say which files the job sees:

own      its own source, data, output and temporary files, and the programs of the machine. S3 or S2 (see `levels`).
machine  the files of the server's user, without those of the server and of other attempts. At most S1: on a private server
         jobs are programs of the owner, and their scripts use the owner's files.

`Wall.open` tests what works here and raises `NotReady` if that is less than the server requires; nothing of the job has run
by then.
"""

from __future__ import annotations

import logging
import marshal
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shoal.agent.lease.volume import own
from shoal.agent.node.workdir import SANDBOX, NotReady, WorkDir
from shoal.agent.sandbox import enter as sandbox_enter
from shoal.agent.sandbox import init as sandbox_init
from shoal.agent.sandbox import rootfs, seccomp
from shoal.agent.sandbox.cgroups import Group, Limits
from shoal.agent.sandbox.devices import devices_of, system_folders
from shoal.agent.sandbox.levels import Level, usable_memory
from shoal.agent.sandbox.limits import DiskWatch, over
from shoal.agent.sandbox.mounts import Bind, Mode, Walls, circumstances, find, wrap
from shoal.agent.sandbox.uids import STAGE, reserve_uid
from shoal.agent.wire import JoinReply, Launch
from shoal.agent.workers.parent import kill_below

if TYPE_CHECKING:
    import socket

    from shoal.agent.sandbox.egress_proxy import Egress, Forward

logger = logging.getLogger(__name__)

HOME, SHARED, USER = "/home/shoal", "/run/shoal", "shoal"
_UID = 1000
PROXY_PORT, SERVER_PORT, TRACKING_PORT = 3128, 3129, 3130
SOCKET, SERVER_SOCKET, TRACKING_SOCKET = "egress.sock", "server.sock", "mlflow.sock"
"""Sockets of the egress proxy, of the way to the server and of MLflow's API, in the folder that the agent shares with the sandbox."""
_TRY_S = 20.0
_LEAST_PIDS, _PIDS_PER_CPU = 4096, 512
_DATA_CACHE = f"{HOME}/.cache/shoal-stream"


class Wall:
    """The sandbox of one node's workers and of the build of its environment."""

    def __init__(self, launch: Launch, join: JoinReply, work: WorkDir, walls: Walls):
        """Set up without starting anything. `walls` are the paths to hide if the job sees the machine's files."""
        self._launch, self._work = launch, work
        self._required: dict[str, Any] = join.sandbox or {}  # None from an older server: as on a private one
        self._alone = join.num_nodes == 1
        self.is_own = self._required.get("files") == "own"
        self.is_off = self._required.get("least") == "off"
        confined = not self.is_off and not self.is_own and seccomp.is_known() and walls.mode is not Mode.REWRITE
        self.walls = walls._replace(filter=work.root / "filter.bpf" if confined else None)
        self.level, self.missing = Level.S0, list[str]()
        self.ended_by: str | None = None
        """Limit that has ended the job, in words."""
        self._memory = 0
        self.group: Group | None = None
        self._uid: tuple[int, int] | None = None
        """User id and the descriptor of the lock on it; None without a user of its own."""
        self._served: list[Egress | Forward] = []
        self._tracks = False

    @property
    def summary(self) -> str:
        """The level for people: 'S3', or a lower one with what is missing."""
        return f"{self.level}: {'; '.join(self.missing)}" if self.missing else str(self.level)

    @property
    def mode(self) -> Mode:
        """Technique that provides the job's paths."""
        return Mode.BWRAP_PID if self.is_own else self.walls.mode

    @property
    def pids(self) -> int:
        return self.limits.get("pids") or max(_LEAST_PIDS, _PIDS_PER_CPU * (os.cpu_count() or 1))

    @property
    def limits(self) -> dict[str, int]:
        """Limits of the job in bytes (and CPUs in hundredths), as far as there are any."""
        return {key: int(value) for key, value in (self._required.get("limits") or {}).items() if value}

    def open(self) -> None:
        """Set up user, cgroup and proxy and find the level; raise `NotReady` if it is below the one required."""
        try:
            if self.is_own:
                self._open_own()
            elif not self.is_off:
                self._open_machine()
            else:
                self.missing.append("switched off on this server")
            least = self._required.get("least") or "S0"
            if least != "off" and self.level < Level(least):
                raise NotReady(_refusal(least, self._launch.machine, self.missing))
        except BaseException:
            self.close()
            raise
        logger.info("sandbox: %s", self.summary)

    def prepare(self) -> None:
        """Give the job's folders to its user. Called after everything is laid out and before anything of the job runs."""
        for folder in self._folders():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._uid is not None:
                own(folder, self._uid[0])

    def wrap(self, argv: Sequence[str], binds: Sequence[Bind], python: str) -> list[str]:
        """Return the command that runs a job's `argv` in the sandbox. `python` is the job's interpreter."""
        if not self.is_own:
            return self._wrap_machine(argv, binds)
        inside = [sys.executable, "-I", "-S", sandbox_init.__file__, self._forwards(), *argv]
        folders = [*rootfs.interpreter_folders(self._launch.python), *rootfs.interpreter_folders(python)]
        return self._entered(SANDBOX, inside, [*self._own_binds(), *(Bind(p, p) for p in folders), *binds])

    def wrap_build(self, argv: Sequence[str], cwd: Path, binds: Sequence[Bind]) -> list[str]:
        """Return the command that runs a build, which sees the machine's programs and these folders only."""
        if self._uid is not None:
            for bind in binds:
                if not bind.read_only:
                    own(Path(bind.host), self._uid[0])
        python = [Bind(p, p) for p in rootfs.interpreter_folders(self._launch.python)]
        inside = [sys.executable, "-I", "-S", sandbox_init.__file__, self._forwards(), *argv]
        return self._entered("build", inside, [Bind(SHARED, str(self._shared)), *python, *binds], str(cwd))

    def env(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables that a process in the sandbox sees differently from the machine's."""
        if not self.is_own:
            return {}
        found = {"HOME": HOME, "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash", "TMPDIR": "/tmp"}  # noqa: S108
        found |= dict.fromkeys(("TMP", "TEMP"), "/tmp")  # noqa: S108
        found |= {"XDG_CACHE_HOME": f"{HOME}/.cache", "XDG_CONFIG_HOME": f"{HOME}/.config"}
        found |= {"SHOAL_DATA_CACHE": _DATA_CACHE}
        if self._has_network:
            return found
        if "SHOAL_URL" in env:
            found["SHOAL_URL"] = self._inner_url(env["SHOAL_URL"])
        if self._required.get("egress", "open") != "none":
            proxy = f"http://127.0.0.1:{PROXY_PORT}"
            names = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
            found |= dict.fromkeys(names, proxy)
            named = urlsplit(env.get("SHOAL_URL", "")).hostname or ""
            found |= dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, ["127.0.0.1,localhost", named])))
        return found

    def listen_for_tracking(self) -> socket.socket | None:
        """Return a socket that workers reach at TRACKING_PORT in the sandbox; None if they use the machine's network."""
        if not self.is_own or self._has_network:
            return None
        from shoal.agent.sandbox.egress_proxy import listen_in

        self._tracks = True
        return listen_in(self._shared, TRACKING_SOCKET)

    def disk_watch(self) -> DiskWatch | None:
        """Return the watch over the disk space the job uses, or None if that is not limited."""
        limit = self.limits.get("disk")
        return DiskWatch(self._folders(), limit, self._exceeded) if limit else None

    def limit_reached(self) -> str | None:
        """Return which limit has ended the job, in words, or None."""
        if self.ended_by is None and self.group is not None and self._memory and self.group.out_of_memory:
            self.ended_by = over("memory", self.group.peak_memory, self._memory)
        return self.ended_by

    def _exceeded(self, text: str) -> None:
        self.ended_by = text
        if self.group is not None:
            self.group.kill()
        else:
            kill_below(os.getpid())

    def kill(self) -> None:
        """Kill every process in the sandbox that the job's parent process has not."""
        if self.group is not None:
            self.group.kill()

    def close(self) -> None:
        for served in self._served:
            served.close()
        self._served.clear()
        if self.group is not None:
            self.group.close()
            self.group = None
        if self._uid is not None:
            os.close(self._uid[1])
            self._uid = None

    # The job sees only its own files.

    def _open_own(self) -> None:
        if not seccomp.is_known():
            self.missing.append(f"no filter of system calls for {os.uname().machine}")
            return
        if os.geteuid() == 0:
            self._uid = reserve_uid()
        else:
            self.missing.append("no user of its own, because the agent does not run as root")
        self._open_group()
        if self._has_network:
            self.missing.append("no network of its own, because it has several nodes")
        self._shared.mkdir(parents=True, exist_ok=True, mode=0o755)
        rootfs.write_etc(self._work.root, self._launch.job_name, USER, _UID, HOME, hosts=self._server_names())
        self.prepare()
        wrong = self._fails_here() if self.walls.mode is not Mode.REWRITE else "bubblewrap does not work"
        if wrong is not None:
            self.missing.append(f"no namespaces ({wrong})")
            return
        self.level = Level.S2 if self.missing else Level.S3
        if not self._has_network:
            from shoal.agent.sandbox.egress_proxy import Egress, Forward

            self._served.append(Forward(self._shared, SERVER_SOCKET, self._launch))
            if self._required.get("egress", "open") != "none":
                self._served.append(Egress(self._shared, allowed=self._required.get("allow") or []))

    @property
    def _has_network(self) -> bool:
        """True if the job uses the machine's network: nodes of one job must reach each other."""
        return not self._alone

    @property
    def _shared(self) -> Path:
        return self._work.root / "run"

    def _folders(self) -> list[Path]:
        work = self._work
        found = [work.source, work.tmp, work.spool("sdk"), work.root / "output-checkpoint"]
        return [*found, work.root / "home", work.root / "scratch"] if self.is_own else found

    def _own_binds(self) -> list[Bind]:
        work = self._work
        same = [work.source, work.tmp, work.spool("sdk")]
        binds = [Bind(str(path), str(path), read_only=False) for path in same]
        binds += [Bind(HOME, str(work.root / "home"), read_only=False)]
        binds += [Bind("/tmp", str(work.root / "scratch"), read_only=False)]  # noqa: S108
        return [*binds, Bind(SHARED, str(self._shared))]

    def _open_group(self) -> None:
        limits = self.limits
        group = Group(f"{self._launch.attempt_id}.{self._launch.node}")
        share = min(1.0, self._launch.cpu_threads * len(self._launch.slots) / (os.cpu_count() or 1))
        memory = limits.get("memory") or (int(usable_memory() * share) if self.is_own else 0)
        self._memory = memory
        try:
            group.open(Limits(memory, self.pids, limits.get("cpus", 0) / 100, share))
            self.group = group
            group.limit_devices(devices_of(self._launch))
        except OSError as error:
            group.close()
            self.missing.append(f"no limits of memory and processes ({error.strerror or error})")

    def _forwards(self) -> str:
        """Return the ports that are forwarded from inside to sockets of the agent, as init.py reads them."""
        if self._has_network:
            return "-"
        pairs = [(SERVER_PORT, SERVER_SOCKET), *([(TRACKING_PORT, TRACKING_SOCKET)] if self._tracks else [])]
        if self._required.get("egress", "open") != "none":
            pairs.append((PROXY_PORT, SOCKET))
        return ",".join(f"{port}={SHARED}/{name}" for port, name in pairs)

    def _server_names(self) -> list[str]:
        name = urlsplit(self._launch.url).hostname or ""
        return [name] if not self._has_network and name and not _is_address(name) else []

    def _inner_url(self, url: str) -> str:
        """Return the server's URL as seen inside, where its port is forwarded; its name stays the same, for TLS."""
        parts = urlsplit(url)
        name = parts.hostname or "127.0.0.1"
        if _is_address(name):
            name = "127.0.0.1"
        return f"{parts.scheme}://{name}:{SERVER_PORT}{parts.path}"

    def _entered(self, file: str, argv: list[str], binds: list[Bind], cwd: str = "/") -> list[str]:
        path = self._work.root / file
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            marshal.dump(self._enter_instructions([*rootfs.job_binds(self._work.root), *binds], cwd), out)
        return [sys.executable, "-I", "-S", sandbox_enter.__file__, str(path), *argv]

    def _enter_instructions(self, binds: list[Bind], cwd: str) -> dict[str, object]:
        binds = list({bind.inside: bind for bind in binds}.values())
        hosts = list(dict.fromkeys(b.host for b in binds))
        places = {host: f"{STAGE}/{number}" for number, host in enumerate(hosts)} if self._uid else {}
        limits = {"core": 0}
        if disk := self.limits.get("disk"):
            limits["fsize"] = disk
        if self.group is None:
            limits["nproc"] = self.pids
        return {
            "entries": self.group.entries if self.group else [],
            "stage": str(STAGE) if self._uid else None,
            "hosts": hosts,
            "uid": self._uid[0] if self._uid else None,
            "limits": limits,
            "bwrap": [*self._bwrap([b._replace(host=places.get(b.host, b.host)) for b in binds]), "--chdir", cwd],
            "landlock": None,
        }

    def _bwrap(self, binds: list[Bind]) -> list[str]:
        args = [find("bwrap") or "/usr/bin/bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        args += [] if self._has_network else ["--unshare-net"]
        args += [
            "--unshare-cgroup-try",
            "--disable-userns",
            "--die-with-parent",
            "--uid",
            str(_UID),
            "--gid",
            str(_UID),
        ]
        args += ["--hostname", rootfs.host_name(self._launch.job_name), "--proc", "/proc", "--dev", "/dev"]
        args += ["--perms", "1777", "--size", str(self._shm_bytes), "--tmpfs", "/dev/shm"]  # noqa: S108
        args += rootfs.links()
        for bind in sorted(binds, key=lambda b: b.inside.count("/")):
            args += ["--ro-bind" if bind.read_only else "--bind", bind.host, bind.inside]
        for folder in system_folders(self._launch):
            args += ["--ro-bind-try", folder, folder]
        for device in devices_of(self._launch):
            args += ["--dev-bind-try", device, device]
        return [*args, "--remount-ro", "/dev", "--remount-ro", "/"]

    @property
    def _shm_bytes(self) -> int:
        return self.limits.get("shm") or (self.limits.get("memory") or usable_memory()) // 2

    def _fails_here(self) -> str | None:
        """Return why such a sandbox does not start on this machine, or None. A success is remembered until the next boot."""
        known = Path(self._launch.cache_dir) / f"sandbox-{'user' if self._uid else 'plain'}"
        state = f"{circumstances(find('bwrap') or '')} {self._has_network}"
        with suppress(OSError):
            if known.read_text() == state:
                return None
        wrong = self._fails()
        if wrong is None:
            with suppress(OSError):
                known.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                known.write_text(state)
        return wrong

    def _fails(self) -> str | None:
        try:
            done = subprocess.run(
                self._entered("probe", ["/bin/sh", "-c", ": >/dev/null"], self._own_binds()),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TRY_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        return (done.stderr.strip().splitlines() or ["it ended at once"])[-1] if done.returncode else None

    # The job sees the machine's files.

    def _open_machine(self) -> None:
        self.missing.append("sees the files of the server's user")
        if self.limits:
            self._open_group()
            if self.group is None:
                raise NotReady(f"--memory and --cpus cannot be enforced on {self._launch.machine}: {self.missing[-1]}")
        if self.walls.filter is not None:
            self.walls.filter.write_bytes(seccomp.program(debugging=True))
        if self.walls.mode is Mode.REWRITE:
            self.missing.append("no namespaces (bubblewrap does not work here)")
        elif not seccomp.is_known():
            self.missing.append(f"no filter of system calls for {os.uname().machine}")
        else:
            self.level = Level.S1

    def _wrap_machine(self, argv: Sequence[str], binds: Sequence[Bind]) -> list[str]:
        walls = self.walls
        todo = wrap(argv, walls.mode, binds, walls.hide, walls.keep, walls.filter)
        if self.group is not None:
            todo = ["/bin/sh", "-c", _JOIN_GROUP, "sh", *self.group.entries, "--", *todo]
        return todo


_JOIN_GROUP = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 1; shift; done; shift; exec "$@"'


def _is_address(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit() or name == "localhost"


def _refusal(least: str, machine: str, missing: list[str]) -> str:
    """Return the reason why a job does not start, with what is missing and the command that changes it."""
    text = f"this server requires sandbox {least} for jobs, but machine '{machine}' offers less: {'; '.join(missing)}."
    fixes = []
    if any("bubblewrap" in one or "namespaces" in one for one in missing):
        fixes.append("install bubblewrap there (apt-get install bubblewrap)")
    if any("root" in one for one in missing):
        here = "run the server as root (sudo shoal server start)"
        fixes.append(here if machine == "local" else f"let '{machine}' join the pool with the login root")
    if any("limits" in one for one in missing):
        fixes.append("make its cgroups writable")
    if any("several nodes" in one for one in missing):
        fixes.append("use one node (--nodes 1 --accels N)")
    lower = f"if everyone who may submit jobs is trusted: shoal server start --job-sandbox {_lower(least)}"
    return f"{text} To fix it: {'; or '.join([*fixes, lower])}"


def _lower(least: str) -> str:
    return {"S3": "S2", "S2": "S1"}.get(least, "S1")
