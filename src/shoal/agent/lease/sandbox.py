"""Sandbox and volume of a lease. The volume outlives the agent.

When the lease ends, the volume is uploaded as a snapshot and then wiped. If only the agent ends, the volume stays as it is.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.agent.lease.snapshot import put_back, upload
from shoal.agent.lease.volume import wipe_abandoned
from shoal.agent.link import Link
from shoal.agent.node.workdir import NotReady, WorkDir
from shoal.agent.sandbox.confine import SHARED_NAME, Confinement, LeaseLimits
from shoal.agent.sandbox.devices import devices_of
from shoal.agent.sandbox.levels import Level, usable_memory
from shoal.agent.sandbox.mounts import Bind
from shoal.agent.wire import JoinReply, Launch
from shoal.core.errors import ShoalError

logger = logging.getLogger(__name__)

RESTORE = "/snapshot"
"""Copy of shoal.core.snapshots.RESTORE: path of the mount with the snapshot to restore."""
_SOURCE = "source"


class LeaseSandbox:
    """Opens, snapshots and closes the sandbox of a lease. `_one_at_a_time` keeps snapshots and the end of the lease apart."""

    def __init__(self, launch: Launch, lease: dict[str, Any], work: WorkDir, python: str, say: Callable[[str], None]):
        self._launch, self._work, self._say = launch, work, say
        self._folder = _folder(launch, lease)
        self._confinement = Confinement(self._folder, str(lease["login"]), limits_of(launch, lease), python)
        self._is_open = False
        self._one_at_a_time = threading.Lock()

    @property
    def summary(self) -> str:
        """The level of the sandbox, for people."""
        return self._confinement.summary

    def prepare(self, restore: Path | None) -> None:
        """Open the sandbox and fill a new volume.

        `restore` is the folder of a snapshot to restore, or None for the job's source.
        """
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
        self._say(f"[shoal] sandbox {self.summary}")

    @property
    def is_mounted(self) -> bool:
        """True if datasets are mounted at their paths; otherwise paths are rewritten."""
        return self._confinement.level >= Level.S2

    def wrap(self, argv: Sequence[str], binds: Sequence[Bind]) -> list[str]:
        """Return the command that runs `argv` in the sandbox.

        Only the volume is writable: other binds are left out unless read-only.
        """
        return self._confinement.wrap(argv, [bind for bind in binds if bind.read_only])

    def env(self) -> dict[str, str]:
        shared = {"SHOAL_SPOOL": self._confinement.shared_inside, "SHOAL_LEASE_HOME": self._confinement.home}
        return self._confinement.env() | shared

    @property
    def cwd(self) -> Path:
        return Path(self._confinement.home)

    def snapshot(self, link: Link) -> None:
        """Upload a snapshot while the lease runs.

        All processes inside are paused, so that the files cannot change meanwhile.
        """
        with self._one_at_a_time:
            self._check_open()
            with self._confinement.paused():
                upload(self._confinement.volume, self._folder, link, self._check_open)

    def close(self, link: Link, *, ended: bool) -> None:
        """Kill all processes and close the volume.

        If the lease has `ended`, upload and wipe it; it stays if the upload fails.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._confinement.kill()
        with self._one_at_a_time:  # a snapshot under way stops at its next check and has the volume open until then
            if ended:
                self._upload_and_wipe(link)
            else:
                self._confinement.close()

    def _upload_and_wipe(self, link: Link) -> None:
        try:
            made = upload(self._confinement.volume, self._folder, link)
        except (ShoalError, OSError) as error:
            logger.exception("the volume could not be uploaded")
            self._say(f"[shoal] the volume could not be uploaded yet and stays on {self._launch.machine}: {error}")
            self._confinement.close()
            return
        for line in made.get("skipped") or []:
            self._say(f"[shoal] not in the snapshot: {line}")
        self._confinement.wipe()

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotReady("the lease is no longer on this machine")


def shared_folder(launch: Launch, lease: dict[str, Any]) -> Path:
    """Return the folder of the lease's sockets."""
    return _folder(launch, lease) / SHARED_NAME


def limits_of(launch: Launch, lease: dict[str, Any]) -> LeaseLimits:
    """Return what the lease may use of this machine: the share of its slots, unless the server says otherwise."""
    given = {key: lease[key] for key in ("disk_mb", "egress") if lease.get(key)}
    cpus = min(launch.cpu_threads * len(launch.slots), os.cpu_count() or 1)
    memory = usable_memory() * cpus // (os.cpu_count() or 1)
    key = lease.get("volume_key")
    return LeaseLimits(
        **given,
        volume_key=bytes.fromhex(str(key)) if key else None,
        cpus=float(cpus),
        memory_mb=memory >> 20,
        shm_mb=max(
            1024, memory >> 21
        ),  # data loaders share batches there: half of the memory, as the kernel's own default
        least=Level(lease.get("least") or Level.S0),
        devices=tuple(devices_of(launch)),
    )


def restore_of(join: JoinReply, paths: list[Path]) -> Path | None:
    """Return the folder of the snapshot to restore, or None. `paths` are the mounts' contents, in their order."""
    return next((path for mount, path in zip(join.mounts, paths, strict=True) if mount.path == RESTORE), None)


def _folder(launch: Launch, lease: dict[str, Any]) -> Path:
    """Return the lease's folder, which is the same each time the lease runs on this machine."""
    return Path(launch.cache_dir) / "leases" / str(lease["id"])
