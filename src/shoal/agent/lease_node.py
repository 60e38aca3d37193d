"""A node that is a lease: a person works in it, whom nobody knows. Nothing of theirs runs outside their sandbox, nor is it read or
written by the agent while they could swap it for something else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.agent import namespaces, runtime
from shoal.agent.attempt import Node
from shoal.agent.commands import Commands
from shoal.agent.inputs import Chunks, fetch_mount, lay_out, write_source
from shoal.agent.lease import Lease
from shoal.agent.limits import set_limits
from shoal.agent.link import Link
from shoal.agent.node import NotReady, WorkDir
from shoal.agent.quarters import RESTORE, Quarters, restore_of, shared_folder
from shoal.agent.sandbox import Mode
from shoal.agent.specs import specs
from shoal.agent.wire import LEASE_SOCKET, Launch

if TYPE_CHECKING:
    from shoal.agent.keeper import Keeper
    from shoal.agent.workers import Watch


class LeaseCommands(Commands):
    """What may be asked of a lease: nothing that has to do with training."""

    def __init__(
        self, launch: Launch, work: WorkDir, link: Link, ranks: range, say: Callable[[str], None], quarters: Quarters
    ):
        super().__init__(launch, work, link, ranks, say)
        self._quarters = quarters
        self._known = {"snapshot": self._snapshot}

    def _snapshot(self, order: str, command: dict[str, Any]) -> None:
        try:
            self._quarters.snapshot(self._link.another())
        except NotReady as error:
            self._say(f"[shoal] no snapshot: {error}")


class LeaseNode(Node):
    def run(self) -> int:
        assert self._join.lease is not None  # noqa: S101
        with suppress(PermissionError):  # who is not root mounts nothing
            namespaces.own_mounts()
        folder = shared_folder(self._launch, self._join.lease)
        (folder / LEASE_SOCKET).unlink(missing_ok=True)  # of a time before
        self._lease = Lease(self._launch, self._join.lease, folder, self._orders)
        return super().run()

    def _prepare(self) -> None:
        """Requirements are not installed: that runs code of the person's, which they can do inside."""
        launch, join, work = self._launch, self._join, self._work
        assert join.lease is not None  # noqa: S101
        chunks = Chunks(launch, self._link, lambda: self._orders.any)
        for folder in (work.tmp, work.spool("sdk")):
            folder.mkdir(parents=True, exist_ok=True)
        write_source(join.source or {"files": []}, chunks, work.source)
        self._uses = [fetch_mount(m, chunks, Path(launch.cache_dir)) for m in join.mounts]
        self._quarters = Quarters(launch, join.lease, work, self._python, self._capture.say)
        self._quarters.prepare(restore_of(join, [use.path for use in self._uses]))
        self._mode = Mode.BWRAP_PID if self._quarters.is_mounted else Mode.REWRITE
        self._also = f", {self._quarters.told}"
        self._orders.on_command = LeaseCommands(
            launch, work, self._link, self._ranks, self._capture.say, self._quarters
        ).take

    def _launch_workers(self) -> int:
        """Never in less of a sandbox than was told."""
        set_limits()
        found = zip(self._join.mounts, self._uses, strict=True)
        mounts = [(m, use.path) for m, use in found if m.path != RESTORE]
        binds = lay_out(self._work.root, self._launch.job_id, mounts, mounted=self._quarters.is_mounted)
        todo = specs(self._launch, self._join, self._work, self._python, binds, self._mode, self._capture)
        todo = [spec._replace(env=spec.env | self._quarters.env()) for spec in todo]
        env = runtime.base_env({}) | runtime.marks(self._launch)
        self._workers.start(
            todo,
            self._quarters.cwd,
            lambda argv: self._quarters.wrap(argv, binds),
            reap=not self._quarters.is_mounted,
            env=env,
        )
        return len(todo)

    def _watch(self, watch: Watch, keeper: Keeper) -> None:
        super()._watch(watch, keeper)
        self._quarters.leave(self._link.another(), ended=self._lease.ended)

    def _finish(self, result: dict[str, Any]) -> int:
        if quarters := getattr(self, "_quarters", None):
            quarters.leave(self._link.another(), ended=False)
        return super()._finish(result)

    def _start_keeper(self) -> Keeper:
        """Of nothing: there are no checkpoints of a lease."""
        from shoal.agent.keeper import Keeper

        return Keeper(self._work.root / "none", self._link.another(), self._capture.say)

    def _start_reports(self, keeper: Keeper) -> None:
        """None: a person is no training script."""
