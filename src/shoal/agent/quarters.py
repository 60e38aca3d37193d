"""Where a lease lives on its machine: a sandbox and a volume that outlast the agent. At the end the volume goes to the store, and
then leaves no trace; an agent that merely lost its way leaves it as it is.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.agent.confine import SHARED_NAME, Confinement, Level, Wish, usable_memory
from shoal.agent.link import Link
from shoal.agent.node import NotReady, WorkDir
from shoal.agent.sandbox import Bind
from shoal.agent.snapshot import put_back, take
from shoal.agent.volume import wipe_abandoned
from shoal.agent.wire import JoinReply, Launch
from shoal.core.errors import ShoalError

logger = logging.getLogger(__name__)

RESTORE = "/snapshot"
"""shoal.core.snapshots.RESTORE: the mount by which a snapshot comes to be put back."""
_SOURCE = "source"


class Quarters:
    def __init__(self, launch: Launch, lease: dict[str, Any], work: WorkDir, python: str, say: Callable[[str], None]):
        self._launch, self._work, self._say = launch, work, say
        self._folder = _folder(launch, lease)
        self._confinement = Confinement(self._folder, str(lease["login"]), wish(launch, lease), python)
        self._is_open = False
        self._one_at_a_time = threading.Lock()

    @property
    def told(self) -> str:
        """How strong its sandbox is, for people."""
        return self._confinement.told

    def prepare(self, restore: Path | None) -> None:
        """`restore`: the files of a snapshot, to begin with."""
        self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        wipe_abandoned(self._folder.parent)
        self._confinement.open()
        self._is_open = True
        volume = self._confinement.volume
        is_new = not any(volume.iterdir())
        if is_new and restore is not None:
            put_back(restore, volume, self._confinement.owner)
        elif is_new and any(self._work.source.iterdir()):
            shutil.copytree(self._work.source, volume / _SOURCE, symlinks=True)
            self._confinement.own(volume / _SOURCE)
        self._say(f"[shoal] sandbox {self.told}")

    @property
    def is_mounted(self) -> bool:
        """Whether datasets can be at their places; else their names are rewritten."""
        return self._confinement.level >= Level.S2

    def wrap(self, argv: Sequence[str], binds: Sequence[Bind]) -> list[str]:
        """Nothing but the volume can be written to: what is ours to read must not be the person's to change."""
        return self._confinement.wrap(argv, [bind for bind in binds if bind.read_only])

    def env(self) -> dict[str, str]:
        shared = {"SHOAL_SPOOL": self._confinement.shared_inside, "SHOAL_LEASE_HOME": self._confinement.home}
        return self._confinement.env() | shared

    @property
    def cwd(self) -> Path:
        return Path(self._confinement.home)

    def snapshot(self, link: Link) -> None:
        """While it goes on: everybody is held for the moment, so that what is read is of one time, and is what it seems to be."""
        with self._one_at_a_time:
            self._demand_open()
            with self._confinement.paused():
                take(self._confinement.volume, self._folder, link, self._demand_open)

    def leave(self, link: Link, *, ended: bool) -> None:
        """`ended`: nobody comes back. What cannot be brought to the server now stays on this machine."""
        if not self._is_open:
            return
        self._is_open = False
        self._confinement.kill()
        with self._one_at_a_time:  # who takes a snapshot now gives up, and has the volume open until then
            if ended:
                self._put_away(link)
            else:
                self._confinement.close()

    def _put_away(self, link: Link) -> None:
        try:
            made = take(self._confinement.volume, self._folder, link)
        except (ShoalError, OSError) as error:
            logger.exception("the volume could not be kept")
            self._say(f"[shoal] the volume could not be kept yet, and stays on {self._launch.machine}: {error}")
            self._confinement.close()
            return
        for line in made.get("skipped") or []:
            self._say(f"[shoal] not in the snapshot: {line}")
        self._confinement.wipe()

    def _demand_open(self) -> None:
        if not self._is_open:
            raise NotReady("the lease has left this machine")


def shared_folder(launch: Launch, lease: dict[str, Any]) -> Path:
    """Where the lease's sockets are."""
    return _folder(launch, lease) / SHARED_NAME


def wish(launch: Launch, lease: dict[str, Any]) -> Wish:
    """What the lease may use of this machine: its slots' share, unless the server says otherwise."""
    given = {key: lease[key] for key in ("disk_mb", "egress") if lease.get(key)}
    cpus = min(launch.cpu_threads * len(launch.slots), os.cpu_count() or 1)
    memory = usable_memory() * cpus // (os.cpu_count() or 1)
    devices: list[str] = []
    if launch.slot_kind == "cuda":
        devices = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
        devices += [f"/dev/nvidia{slot}" for slot in launch.slots]
    elif launch.slot_kind == "rocm":
        devices = ["/dev/kfd", "/dev/dri"]
    return Wish(
        **given,
        cpus=float(cpus),
        memory_mb=memory >> 20,
        least=Level(lease.get("least") or Level.S0),
        devices=tuple(devices),
    )


def restore_of(join: JoinReply, paths: list[Path]) -> Path | None:
    """Of the mounts' contents, in their order, the snapshot to put back."""
    return next((path for mount, path in zip(join.mounts, paths, strict=True) if mount.path == RESTORE), None)


def _folder(launch: Launch, lease: dict[str, Any]) -> Path:
    """The same whenever the lease is on this machine."""
    return Path(launch.cache_dir) / "leases" / str(lease["id"])
