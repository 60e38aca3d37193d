"""A sandbox for a person: own user, processes, network, memory, disk. As strong as this machine lets it be, and saying how strong that is.

S3  own user, namespaces, groups for memory, processes and processor time, filtered system calls, a volume with a size
S2  namespaces and filtered system calls; some of the rest is lacking, and named
S1  no namespaces: files outside are out of reach by Landlock, system calls are filtered; processes and ports of others are seen
S0  nothing
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from shoal.agent import confined, landlock, outfit, seccomp, within
from shoal.agent.cgroups import Group, Limits
from shoal.agent.egress import SOCKET, Egress
from shoal.agent.node import NotReady
from shoal.agent.sandbox import Bind, find
from shoal.agent.uids import STAGE, take_uid
from shoal.agent.volume import Volume, own

logger = logging.getLogger(__name__)

SHARED_NAME = "shared"
HOME, SHARED, USER = "/home/shoal", "/run/shoal", "shoal"
_UID = 1000
_PROXY_PORT = 3128
_TRY_S = 20.0


class Level(StrEnum):
    S0, S1, S2, S3 = "S0", "S1", "S2", "S3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the person inside may use."""

    memory_mb: int = 0
    """0: nine tenths of what the machine has."""
    cpus: float = 0.0
    """0: all of them."""
    pids: int = 2048
    tmp_mb: int = 1024
    shm_mb: int = 1024
    disk_mb: int = 10_240
    egress: str = "open"
    """'open': public addresses through a proxy (HTTPS_PROXY is set); 'none': nothing but its own loopback."""
    least: Level = Level.S0
    """Refuse where less than this can be had."""
    devices: tuple[str, ...] = ()
    """Of the slots that are the person's."""


def usable_memory() -> int:
    """Bytes that all sandboxes may have together: the rest is for the machine itself."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10 * 9


class Confinement:
    """`open` before anything starts, `close` at the end; `wrap` is for what runs in between."""

    def __init__(self, folder: Path, name: str, wish: Wish, python: str = sys.executable):
        self._folder, self._name, self._wish, self._python = folder, name, wish, python
        self._volume = Volume(folder, wish.disk_mb << 20)
        self._group: Group | None = None
        self._egress: Egress | None = None
        self._uid: tuple[int, int] | None = None
        """(user, descriptor of the lock on it)."""
        self.level = Level.S0
        self.lacks: list[str] = []

    @property
    def told(self) -> str:
        """For people: 'S3', or what is missing to it."""
        return f"{self.level}: {'; '.join(self.lacks)}" if self.lacks else str(self.level)

    @property
    def volume(self) -> Path:
        return self._volume.path

    @property
    def owner(self) -> tuple[int, int] | None:
        """User and group of the person, on the machine; None where it is ours."""
        return (self._uid[0], self._uid[0]) if self._uid is not None else None

    @property
    def shared(self) -> Path:
        """For sockets, theirs and ours. The person may put anything there: nothing in it is opened by its name alone (see `dial`)."""
        return self._folder / SHARED_NAME

    @property
    def home(self) -> str:
        """The volume, as the person finds it."""
        return self._inside(0)

    @property
    def shared_inside(self) -> str:
        """The shared folder, as the person finds it."""
        return self._inside(1)

    def open(self) -> None:
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def wrap(self, argv: Sequence[str], binds: Sequence[Bind] = ()) -> list[str]:
        """The command that runs `argv` inside."""
        if self.level is Level.S0:
            return list(argv)
        order = self._folder / "order.json"
        order.write_text(
            json.dumps(self._order([*self._own_binds(), *outfit.binds(self._folder, self._python), *binds]))
        )
        inside = [*argv]
        if self.level >= Level.S2:
            port = _PROXY_PORT if self._egress else 0
            inside = [sys.executable, "-I", "-S", within.__file__, str(port), f"{SHARED}/{SOCKET}", *argv]
        return [sys.executable, "-I", "-S", confined.__file__, str(order), *inside]

    def env(self) -> dict[str, str]:
        """To lay over what the machine gives its jobs."""
        mounted = self.level >= Level.S2
        env = {"HOME": self.home, "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash"}
        env["TMPDIR"] = "/tmp" if mounted else self.home  # noqa: S108
        if self._egress and mounted:
            proxy = f"http://127.0.0.1:{_PROXY_PORT}"
            env |= dict.fromkeys(("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), proxy)
            env |= dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        return env

    def own(self, path: Path) -> None:
        """All below belongs to the person."""
        if self._uid is not None:
            own(path, self._uid[0])

    def kill(self) -> None:
        """Every process inside, at once."""
        if self._group is not None:
            self._group.kill()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody inside does anything meanwhile. NotReady where they cannot be held."""
        if self._group is None:
            raise NotReady(f"nobody can be held still here: {self.told}")
        self._group.pause()
        try:
            yield
        finally:
            self._group.resume()

    def close(self) -> None:
        """The volume stays as it is."""
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
        for old in self.shared.iterdir():  # the folder itself stays: others of us may have it open
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        outfit.write_etc(self._folder, self._name, USER, _UID, HOME)
        if os.geteuid() == 0:
            self._uid = take_uid()
        else:
            self.lacks.append("no user of its own (the agent is not root)")
        self._open_group()
        if not self._volume.is_limited:
            self.lacks.append("no file system of its own to limit its disk")
        for path in (self.volume, self.shared):
            self.own(path)
        self.level = self._try()
        if self._wish.egress == "open" and self.level >= Level.S2:
            self._egress = Egress(self.shared)
        if self.level < self._wish.least:
            raise NotReady(f"a sandbox of level {self._wish.least} is asked for, and this machine has {self.told}")
        logger.info("sandbox of %s: %s", self._name, self.told)

    def _open_group(self) -> None:
        memory = self._wish.memory_mb << 20 or usable_memory()
        group = Group(self._name)
        try:
            group.open(Limits(memory, self._wish.pids, self._wish.cpus or float(os.cpu_count() or 1)))
            self._group = group
        except OSError as error:
            group.close()
            self.lacks.append(f"no limits of memory and processes ({error.strerror or error})")

    def _try(self) -> Level:
        """The strongest that works here; what does not, and why, is noted."""
        if not seccomp.is_known():
            self.lacks.append(f"no filter of system calls for {os.uname().machine}")
            return Level.S0
        self.level = Level.S2 if self.lacks else Level.S3
        wrong = self._fails() if find("bwrap") else "bubblewrap is not installed"
        if wrong is None:
            return self.level
        self.lacks.append(f"no namespaces ({wrong})")
        self.level = Level.S1
        if not landlock.version():
            self.lacks.append("no Landlock")
        elif (wrong := self._fails()) is None:
            return Level.S1
        else:
            self.lacks.append(f"no Landlock ({wrong})")
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
        """Where the person finds one of `_own_binds`, which are the first to be staged."""
        bind = self._own_binds()[number]
        if self.level >= Level.S2:
            return bind.inside
        return f"{STAGE}/{number}" if self._uid and self.level is Level.S1 else bind.host

    def _own_binds(self) -> list[Bind]:
        return [Bind(HOME, str(self.volume), read_only=False), Bind(SHARED, str(self.shared), read_only=False)]

    def _order(self, binds: list[Bind]) -> dict[str, object]:
        """For confined.py. What only root can reach is staged: bubblewrap and Landlock meet it as the person's user."""
        limits = {"core": 0, "fsize": self._wish.disk_mb << 20, "nofile": 65536}
        if self._group is None:
            limits["nproc"] = self._wish.pids
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
            "landlock": None if mounted else outfit.reach(seen, self.home),
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
            *("--hostname", outfit.host_name(self._name), "--proc", "/proc", "--dev", "/dev"),
            *("--size", str(self._wish.shm_mb << 20), "--tmpfs", "/dev/shm"),  # noqa: S108
            *("--perms", "1777", "--size", str(self._wish.tmp_mb << 20), "--tmpfs", "/tmp"),  # noqa: S108
            *outfit.links(),
        ]
        for bind in sorted(binds, key=lambda b: b.inside.count("/")):
            args += ["--ro-bind" if bind.read_only else "--bind", bind.host, bind.inside]
        for device in self._wish.devices:
            args += ["--dev-bind-try", device, device]
        # What is not the person's to fill: it would count against the machine's memory.
        return [*args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME]
