"""A node that is a lease: an untrusted person works in it.

Nothing of theirs runs outside the sandbox, and the agent does not read or write their files while they could replace them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.agent.data.inputs import Chunks, fetch_mount, lay_out, write_source
from shoal.agent.lease.lease import Lease
from shoal.agent.lease.sandbox import RESTORE, LeaseSandbox, restore_of, shared_folder
from shoal.agent.link import Link
from shoal.agent.node.commands import Commands
from shoal.agent.node.limits import set_limits
from shoal.agent.node.node import Node
from shoal.agent.node.workdir import NotReady, WorkDir
from shoal.agent.sandbox import namespaces
from shoal.agent.sandbox.mounts import Mode
from shoal.agent.wire import LEASE_SOCKET, Launch
from shoal.agent.workers import runtime
from shoal.agent.workers.specs import specs
from shoal.core.commands import Command

if TYPE_CHECKING:
    from shoal.agent.data.checkpoint_uploader import CheckpointUploader
    from shoal.agent.workers.workers import Watch


class LeaseCommands(Commands):
    """Commands from the server to a lease: snapshots only, nothing related to training."""

    def __init__(
        self, launch: Launch, work: WorkDir, link: Link, ranks: range, say: Callable[[str], None], sandbox: LeaseSandbox
    ):
        super().__init__(launch, work, link, ranks, say)
        self._sandbox = sandbox
        self._known = {Command.SNAPSHOT: self._snapshot}

    def _snapshot(self, command_id: str, command: dict[str, Any]) -> None:
        try:
            self._sandbox.snapshot(self._link.another())
        except NotReady as error:
            self._say(f"[shoal] no snapshot: {error}")


class LeaseNode(Node):
    """Node that runs the SSH server of a lease instead of training workers."""

    def run(self) -> int:
        assert self._join.lease is not None  # noqa: S101
        with suppress(PermissionError):  # without root nothing is mounted
            namespaces.own_mounts()
        folder = shared_folder(self._launch, self._join.lease)
        (folder / LEASE_SOCKET).unlink(missing_ok=True)  # left by an earlier agent
        self._lease = Lease(self._launch, self._join.lease, folder, self._control)
        return super().run()

    def _prepare(self) -> None:
        """Prepare sandbox, source and data. Requirements are not installed, because that would run untrusted code outside."""
        launch, join, work = self._launch, self._join, self._work
        assert join.lease is not None  # noqa: S101
        chunks = Chunks(launch, self._link, lambda: self._control.any)
        for folder in (work.tmp, work.spool("sdk")):
            folder.mkdir(parents=True, exist_ok=True)
        write_source(join.source or {"files": []}, chunks, work.source)
        self._uses = [fetch_mount(m, chunks, Path(launch.cache_dir)) for m in join.mounts]
        self._sandbox = LeaseSandbox(launch, join.lease, work, self._python, self._capture.write_message)
        self._sandbox.prepare(restore_of(join, [use.path for use in self._uses]))
        self._mode = Mode.BWRAP_PID if self._sandbox.is_mounted else Mode.REWRITE
        self._also = f", {self._sandbox.summary}"
        self._control.on_command = LeaseCommands(
            launch, work, self._link, self._ranks, self._capture.write_message, self._sandbox
        ).start_once

    def _launch_workers(self) -> int:
        """Start the SSH server in the sandbox. There is no fallback to a weaker one than was reported."""
        set_limits()
        found = zip(self._join.mounts, self._uses, strict=True)
        mounts = [(m, use.path) for m, use in found if m.path != RESTORE]
        binds = lay_out(self._work.root, self._launch.job_id, mounts, mounted=self._sandbox.is_mounted)
        todo = specs(self._launch, self._join, self._work, self._python, binds, self._mode, self._capture)
        todo = [spec._replace(env=spec.env | self._sandbox.env()) for spec in todo]
        env = runtime.base_env({}) | runtime.marks(self._launch)
        self._workers.start(
            todo,
            self._sandbox.cwd,
            lambda argv: self._sandbox.wrap(argv, binds),
            reap=not self._sandbox.is_mounted,
            env=env,
        )
        return len(todo)

    def _watch(self, watch: Watch, uploader: CheckpointUploader) -> None:
        super()._watch(watch, uploader)
        self._sandbox.close(self._link.another(), ended=self._lease.ended)

    def _finish(self, result: dict[str, Any]) -> int:
        if sandbox := getattr(self, "_sandbox", None):
            sandbox.close(self._link.another(), ended=False)
        return super()._finish(result)

    def _start_uploader(self) -> CheckpointUploader:
        """Return an uploader that is not started, because a lease has no checkpoints."""
        from shoal.agent.data.checkpoint_uploader import CheckpointUploader

        return CheckpointUploader(self._work.root / "none", self._link.another(), self._capture.write_message)

    def _start_reports(self, uploader: CheckpointUploader) -> None:
        """Do nothing: a lease has no SDK records."""
