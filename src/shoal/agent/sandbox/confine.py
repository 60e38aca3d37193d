"""The sandbox of a lease, as strong as this machine allows, with a level that says how strong it is (see `levels`)."""

from __future__ import annotations

import logging
import marshal
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shoal.agent.lease.volume import Volume, own
from shoal.agent.node.workdir import NotReady
from shoal.agent.sandbox import enter as sandbox_enter
from shoal.agent.sandbox import init as sandbox_init
from shoal.agent.sandbox import landlock, rootfs, seccomp
from shoal.agent.sandbox.cgroups import Group, Limits
from shoal.agent.sandbox.egress_proxy import SOCKET, Egress
from shoal.agent.sandbox.levels import Level, usable_memory
from shoal.agent.sandbox.mounts import Bind, find
from shoal.agent.sandbox.uids import STAGE, reserve_uid

logger = logging.getLogger(__name__)

SHARED_NAME = "shared"
HOME, SHARED, USER = "/home/shoal", "/run/shoal", "shoal"
_UID = 1000
_PROXY_PORT = 3128
_TRY_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLimits:
    """Resources and network access that the person inside may use."""

    memory_mb: int = 0
    """Memory limit; 0 means nine tenths of the machine's memory."""
    cpus: float = 0.0
    """Number of CPUs; 0 means all."""
    pids: int = 2048
    tmp_mb: int = 1024
    shm_mb: int = 1024
    disk_mb: int = 10_240
    egress: str = "open"
    """'open': public addresses through a proxy (HTTPS_PROXY is set); 'none': only its own loopback."""
    least: Level = Level.S0
    """Lowest acceptable level; a machine that offers less is refused."""
    devices: tuple[str, ...] = ()
    """Device files of the person's slots."""
    volume_key: bytes | None = field(default=None, repr=False)
    """Key with which the volume is encrypted; None: it is not."""


class Confinement:
    """The sandbox of one person: call `open` before anything starts and `close` at the end; `wrap` the commands in between."""

    def __init__(self, folder: Path, name: str, limits: LeaseLimits, python: str = sys.executable):
        self._folder, self._name, self._limits, self._python = folder, name, limits, python
        self._volume = Volume(folder, limits.disk_mb << 20, limits.volume_key)
        self._group: Group | None = None
        self._egress: Egress | None = None
        self._uid: tuple[int, int] | None = None
        """The sandbox's user id and the descriptor of the lock on it; None without a user of its own."""
        self.level = Level.S0
        self.missing: list[str] = []

    @property
    def summary(self) -> str:
        """The level for people: 'S3', or a lower one with what is missing."""
        return f"{self.level}: {'; '.join(self.missing)}" if self.missing else str(self.level)

    @property
    def volume(self) -> Path:
        return self._volume.path

    @property
    def owner(self) -> tuple[int, int] | None:
        """User and group of the person on the machine; None if they are the agent's own."""
        return (self._uid[0], self._uid[0]) if self._uid is not None else None

    @property
    def shared(self) -> Path:
        """The folder for sockets of both sides.

        The person can put anything there, so never open it by name alone (see `dial`).
        """
        return self._folder / SHARED_NAME

    @property
    def home(self) -> str:
        """The path of the volume inside the sandbox."""
        return self._inside(0)

    @property
    def shared_inside(self) -> str:
        """The path of the shared folder inside the sandbox."""
        return self._inside(1)

    def open(self) -> None:
        """Set up volume, user, cgroup and proxy, and find the level that works; raise `NotReady` if it is too low."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def wrap(self, argv: Sequence[str], binds: Sequence[Bind] = ()) -> list[str]:
        """Return the command that runs `argv` in the sandbox."""
        if self.level is Level.S0:
            return list(argv)
        path = self._folder / "order"
        path.write_bytes(
            marshal.dumps(self._instructions([*self._own_binds(), *rootfs.binds(self._folder, self._python), *binds]))
        )
        inside = [*argv]
        if self.level >= Level.S2:
            forwards = f"{_PROXY_PORT}={SHARED}/{SOCKET}" if self._egress else "-"
            inside = [sys.executable, "-I", "-S", sandbox_init.__file__, forwards, *argv]
        return [sys.executable, "-I", "-S", sandbox_enter.__file__, str(path), *inside]

    def env(self) -> dict[str, str]:
        """Return the variables that override those of the machine."""
        mounted = self.level >= Level.S2
        env = {"HOME": self.home, "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash"}
        env["TMPDIR"] = "/tmp" if mounted else self.home  # noqa: S108
        if self._egress and mounted:
            proxy = f"http://127.0.0.1:{_PROXY_PORT}"
            env |= dict.fromkeys(("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), proxy)
            env |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        return env

    def own(self, path: Path) -> None:
        """Make the person the owner of all files below a path."""
        if self._uid is not None:
            own(path, self._uid[0])

    def kill(self) -> None:
        """Kill every process in the sandbox."""
        if self._group is not None:
            self._group.kill()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause all processes in the sandbox for the duration of the block; raise `NotReady` if that is impossible here."""
        if self._group is None:
            raise NotReady(f"processes cannot be paused on this machine: {self.summary}")
        self._group.pause()
        try:
            yield
        finally:
            self._group.resume()

    def close(self) -> None:
        """End the sandbox; the content of the volume stays."""
        if self._group is not None:
            self._group.close()
        if self._egress is not None:
            self._egress.close()
            self._egress = None
        self._volume.close()
        if self._uid is not None:
            os.close(self._uid[1])
            self._uid = None

    def wipe(self) -> None:
        self.close()
        self._volume.wipe()

    def _open(self) -> None:
        self._volume.open()
        self.shared.mkdir(exist_ok=True, mode=0o700)
        for (
            old
        ) in self.shared.iterdir():  # the folder itself stays, because other threads of the agent may have it open
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        rootfs.write_etc(self._folder, self._name, USER, _UID, HOME)
        if os.geteuid() == 0:
            self._uid = reserve_uid()
        else:
            self.missing.append("no user of its own (the agent is not root)")
        self._open_group()
        if not self._volume.is_limited:
            self.missing.append("no file system of its own to limit its disk")
        elif self._volume.why_plain:
            self.missing.append(f"its disk is not encrypted ({self._volume.why_plain})")
        for path in (self.volume, self.shared):
            self.own(path)
        self.level = self._try()
        if self._limits.egress == "open" and self.level >= Level.S2:
            self._egress = Egress(self.shared)
        if self.level < self._limits.least:
            raise NotReady(
                f"this lease needs a sandbox of level {self._limits.least}, but this machine offers {self.summary}"
            )
        logger.info("sandbox of %s: %s", self._name, self.summary)

    def _open_group(self) -> None:
        memory = self._limits.memory_mb << 20 or usable_memory()
        group = Group(self._name)
        try:
            group.open(Limits(memory, self._limits.pids, self._limits.cpus or float(os.cpu_count() or 1)))
            self._group = group
            group.limit_devices(self._limits.devices)
        except OSError as error:
            group.close()
            self.missing.append(f"no limits of memory and processes ({error.strerror or error})")

    def _try(self) -> Level:
        """Return the strongest level that works here; what does not work is added to `missing` with the reason."""
        if not seccomp.is_known():
            self.missing.append(f"no filter of system calls for {os.uname().machine}")
            return Level.S0
        self.level = Level.S2 if self.missing else Level.S3
        wrong = self._fails() if find("bwrap") else "bubblewrap is not installed"
        if wrong is None:
            return self.level
        self.missing.append(f"no namespaces ({wrong})")
        self.level = Level.S1
        if not landlock.version():
            self.missing.append("no Landlock")
        elif (wrong := self._fails()) is None:
            return Level.S1
        else:
            self.missing.append(f"no Landlock ({wrong})")
        return Level.S0

    def _fails(self) -> str | None:
        try:
            done = subprocess.run(
                self.wrap([self._python, "-I", "-S", "-c", "open('/dev/null', 'w')"]),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TRY_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        return (done.stderr.strip().splitlines() or ["it ended at once"])[-1] if done.returncode else None

    def _inside(self, number: int) -> str:
        """Return the path inside the sandbox of one of `_own_binds`, which are the first to be staged."""
        bind = self._own_binds()[number]
        if self.level >= Level.S2:
            return bind.inside
        return f"{STAGE}/{number}" if self._uid and self.level is Level.S1 else bind.host

    def _own_binds(self) -> list[Bind]:
        return [Bind(HOME, str(self.volume), read_only=False), Bind(SHARED, str(self.shared), read_only=False)]

    def _instructions(self, binds: list[Bind]) -> dict[str, object]:
        """Return the instructions for enter.py.

        Paths that only root can reach are staged, because bubblewrap runs as the person.
        """
        limits = {"core": 0, "fsize": self._limits.disk_mb << 20, "nofile": 65536}
        if self._group is None:
            limits["nproc"] = self._limits.pids
        mounted = self.level >= Level.S2
        hosts = [b.host for b in binds if mounted or not b.read_only]
        places = {host: f"{STAGE}/{number}" for number, host in enumerate(hosts)} if self._uid else {}
        seen = [b._replace(host=places.get(b.host, b.host)) for b in binds]
        return {
            "entries": self._group.entries if self._group else [],
            "stage": str(STAGE) if self._uid else None,
            "hosts": hosts,
            "uid": self._uid[0] if self._uid else None,
            "limits": limits,
            "bwrap": self._bwrap(seen) if mounted else [],
            "landlock": None if mounted else rootfs.reach(seen, self.home),
        }

    def _bwrap(self, binds: list[Bind]) -> list[str]:
        args = [
            *(
                find("bwrap") or "/usr/bin/bwrap",
                "--unshare-user",
                "--unshare-pid",
                "--unshare-ipc",
                "--unshare-uts",
                "--unshare-net",
            ),
            *("--unshare-cgroup-try", "--disable-userns", "--die-with-parent", "--uid", str(_UID), "--gid", str(_UID)),
            *("--hostname", rootfs.host_name(self._name), "--proc", "/proc", "--dev", "/dev"),
            *("--size", str(self._limits.shm_mb << 20), "--tmpfs", "/dev/shm"),  # noqa: S108
            *("--perms", "1777", "--size", str(self._limits.tmp_mb << 20), "--tmpfs", "/tmp"),  # noqa: S108
            *rootfs.links(),
        ]
        for bind in sorted(binds, key=lambda b: b.inside.count("/")):
            args += ["--ro-bind" if bind.read_only else "--bind", bind.host, bind.inside]
        for device in self._limits.devices:
            args += ["--dev-bind-try", device, device]
        # Read-only, because files that the person writes there would use the machine's memory.
        return [*args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME]
