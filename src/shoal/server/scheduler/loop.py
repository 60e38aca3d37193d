"""The scheduler's loop: read the state, decide, act; and the watchdog for nodes that stopped reporting.

Why this is safe: one thread runs every pass, so all private fields of `Scheduler` and `RunningJobChecks` have one owner and
need no lock. Shared state is only `ctx.live` and `ctx.queue` (see there) and the database, whose single writer thread
runs every change as one transaction. A decision may be outdated when it is applied: each write checks the job's state again
(`attempts.create` returns None for a job that is no longer queued or is over quota), so a job never starts twice. After a crash
between the commit of an attempt and `engine.start`, the next server finds a node without an agent (`AgentState.UNKNOWN`),
declares it lost, and the job restarts as after any lost node. A lost wake-up only delays a pass to the next tick.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.agent.devices.binding import device_files, visible_name
from shoal.agent.wire import JOIN_REFUSED, NEVER_STARTED
from shoal.core.agents import Launch
from shoal.core.background_loops import Loop, run_all
from shoal.core.errors import Refused, ShoalError, StorageFull
from shoal.core.faults import FULL_DISK
from shoal.core.ids import new_id
from shoal.core.schema import utcnow
from shoal.core.settings import Layout
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.engines.base import AgentState, Gang, Machine
from shoal.engines.slots import cpu_threads
from shoal.server.artifacts import datasets, interrupted_uploads
from shoal.server.billing import budgets, ledger
from shoal.server.context import Context
from shoal.server.db import storage_error
from shoal.server.jobs import attempts
from shoal.server.jobs.agents import read_token
from shoal.server.jobs.service import request_preempt, request_stop
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.people.keys import flush_touched
from shoal.server.policy import hash_token
from shoal.server.pool import device_drains
from shoal.server.pool.device_faults import DeviceFaults
from shoal.server.pool.device_history import DeviceHistory
from shoal.server.preflight import service as preflights
from shoal.server.scheduler import after
from shoal.server.scheduler.decide import Decision, Placement, decide
from shoal.server.scheduler.machine_parts import host
from shoal.server.scheduler.running_jobs import RunningJobChecks
from shoal.server.scheduler.state import ran_s

logger = logging.getLogger(__name__)
_TICK_S = 1.0
"""Longest time between two passes, in seconds."""
_HOUSEKEEPING_S = 60.0
"""Seconds between two rounds of housekeeping that need not happen in every pass."""
_DEVICES_S = 30.0
"""Seconds between two comparisons of the accelerators with the database."""


@dataclass(frozen=True, slots=True)
class OpenNode:
    """A node of an attempt that has not ended."""

    job_id: str
    attempt_id: str
    index: int
    machine: str
    slots: tuple[int, ...]
    state: NodeState
    over: bool
    """True if its attempt was given up or its job was asked to stop."""


class Scheduler:
    """The scheduler's thread: `start` it once per server. Tests call `pass_once` instead."""

    def __init__(self, ctx: Context, url: str):
        self.ctx, self.url = ctx, url
        self._loop = Loop(
            "scheduler", self._step, wait=ctx.live.scheduler.wait, is_closing=lambda: ctx.live.closing, every_s=_TICK_S
        )
        self._kept_house_at = time.monotonic()
        self._gone_since: dict[tuple[str, int], float] = {}
        self._renewed_at = float("-inf")
        self._faults_read_at = utcnow()
        self._tending = RunningJobChecks(ctx)
        self._device_faults = DeviceFaults(ctx)
        self._devices, self._devices_at = DeviceHistory(ctx), float("-inf")

    def start(self) -> None:
        self.ctx.loops.start(self._loop)

    def stop(self) -> None:
        """Wait for the current pass to finish and end the thread. Call `live.close()` first."""
        self._loop.stop()

    def _step(self) -> None:
        self.ctx.live.scheduler.clear()
        try:
            self.pass_once()
        finally:
            self._housekeep()

    def _housekeep(self) -> None:
        preflights.see_off(self.ctx)
        if time.monotonic() - self._kept_house_at > _HOUSEKEEPING_S or self.ctx.live.closing:
            self._kept_house_at = time.monotonic()
            run_all(
                [
                    partial(flush_touched, self.ctx),
                    partial(preflights.clear, self.ctx),
                    partial(datasets.expire_uploads, self.ctx),
                    partial(interrupted_uploads.drop_expired, self.ctx),
                ]
            )
        if time.monotonic() - self._devices_at > _DEVICES_S:
            self._devices_at = time.monotonic()
            self._devices.update()

    def pass_once(self) -> None:
        """Read the state once, enforce limits and budgets, check the nodes, then start and preempt jobs."""
        self._faults_read_at = device_drains.drain_faulty(self.ctx, self._faults_read_at)
        machines = self.ctx.engine.capacity()
        with self.ctx.db.read() as session:
            seen = self.ctx.queue.read(session, machines, self.ctx.settings)
            nodes, limits = _open_nodes(session), _over_time(session)
            spent, sweeps = budgets.used_up(session, self.ctx)
        # Every stage runs even if another fails: a refused write must not stop the watchdog.
        stages: list[Callable[[], object]] = [partial(self._renew, nodes)]
        stages += [partial(self._hit_limit, job_id, text) for job_id, text in limits + spent]
        stages += [partial(self._end_sweep, sweep_id, text) for sweep_id, text in sweeps]
        stages.append(partial(self._watch, nodes, {m.name for m in machines if m.state == "lost"}))
        stages.append(partial(self._tending.watch, nodes))
        stages.append(partial(self._device_faults.watch, nodes, machines))
        stages += [partial(self._end_hopeless, job_id) for job_id in seen.hopeless]
        stages.append(lambda: self._act(decide(seen)))
        run_all(stages)

    def _renew(self, nodes: list[OpenNode]) -> None:
        """Write the usage of open nodes to the ledger, so that a crash of the server loses at most one tick of it."""
        if nodes and time.monotonic() - self._renewed_at >= _TICK_S:
            self._renewed_at = time.monotonic()
            try:
                self.ctx.db.write(lambda session: ledger.renew(session, self.ctx.usage_clock), essential=True)
            except ShoalError as error:  # a full disk must not stop the watchdog
                logger.warning("the usage of nodes could not be written to the ledger: %s", error)

    def _act(self, decision: Decision) -> None:
        self.ctx.live.waiting = decision.waiting
        self.ctx.queue.promised = tuple(kept.job_id for kept in decision.reserved)
        stages: list[Callable[[], object]] = [partial(self._start, job_id, gang) for job_id, gang in decision.starts]
        stages += [partial(self._preempt, job_id, for_id) for job_id, for_id in decision.preempts.items()]
        run_all([*stages, partial(self._tending.grow, decision.grows)])

    def _preempt(self, job_id: str, for_id: str) -> None:
        def work(session: Session) -> bool:
            job, other = session.get(Job, job_id), session.get(Job, for_id)
            if job is None or other is None or other.state != JobState.QUEUED:
                return False
            what = f"job '{other.name}'" if other.workspace_id == job.workspace_id else "a job of another workspace"
            return request_preempt(session, job, f"preempted by {what} with priority {other.priority}")

        if self.ctx.db.write(work, essential=True):
            self.ctx.live.job_changed(job_id)

    def _start(self, job_id: str, gang: list[Placement]) -> None:
        gang = [Placement(host(node.machine), node.slots) for node in gang]
        attempt_id = new_id("att")
        token_hash = hash_token(read_token(self.ctx, attempt_id))
        machines = self.ctx.engine.capacity()

        def work(session: Session) -> tuple[Attempt, list[str]] | None:
            made = attempts.create(session, job_id, gang, attempt_id, token_hash)
            if made is not None:
                ledger.open_nodes(session, self.ctx.usage_clock, made[0], machines, self.ctx.settings)
            return made

        made = self.ctx.db.write(work)
        if made is None:
            return
        attempt, tokens = made
        for index in range(len(gang)):
            self.ctx.live.beat(attempt.id, index)
        self.ctx.live.job_changed(job_id)
        try:
            self.ctx.engine.start(self._gang(attempt, gang, tokens))
        except (OSError, ShoalError) as error:
            logger.error("attempt %s could not be started: %s", attempt.id, error)
            why = FULL_DISK if isinstance(storage_error(error), StorageFull) else "the agent could not be started"
            self._lose(attempt.id, range(len(gang)), f"{why}: {error}")

    def _gang(self, attempt: Attempt, gang: list[Placement], tokens: list[str]) -> Gang:
        with self.ctx.db.read() as session:
            job = session.get_one(Job, attempt.job_id)
        machines = {m.name: m for m in self.ctx.engine.capacity()}
        if missing := [node.machine for node in gang if node.machine not in machines]:
            raise Refused(f"machine '{missing[0]}' has left the pool")
        # Nodes on this machine use the loopback address. In a gang with remote nodes they need the address at which those
        # remote nodes reach the server.
        elsewhere = next((machines[node.machine].url for node in gang if machines[node.machine].url), None)
        return Gang(
            attempt_id=attempt.id,
            exclude=(*job.spec["exclude"], *self.ctx.queue.shunned, *sorted(self.ctx.queue.avoided(job.id))),
            options=job.spec.get("engine_options", {}),
            nodes=[
                self._launch(
                    attempt,
                    index,
                    machines[node.machine],
                    node.slots,
                    job_name=job.name,
                    token=token,
                    address=urlsplit(elsewhere).hostname if elsewhere and not machines[node.machine].url else None,
                )
                for index, (node, token) in enumerate(zip(gang, tokens, strict=True))
            ],
        )

    def _launch(self, attempt: Attempt, index: int, machine: Machine, slots: tuple[int, ...], **more: Any) -> Launch:
        layout, away = self.ctx.layout, machine.home is not None
        there = Layout(Path(machine.home)) if machine.home is not None else layout
        return Launch(
            job_id=attempt.job_id,
            attempt_id=attempt.id,
            attempt=attempt.number,
            node=index,
            url=machine.url or self.url,
            ca=self.ctx.pool.ca_for(self.ctx, machine.url),
            server_file=None if away else str(layout.server_file),
            instance=self.ctx.instance or None,
            hide=[str(path) for path in dict.fromkeys([*layout.private_paths(), *there.private_paths()])],
            store_path=None if away or self.ctx.settings.store else str(layout.store_dir),
            work_dir=str(there.nodes_dir / f"{attempt.id}.{index}"),
            cache_dir=str(there.cache_dir),
            python=machine.python or sys.executable,
            machine=machine.name,
            slots=_numbers(machine, slots),
            devices=[visible_name(machine.inventory[s]) for s in slots] if machine.inventory else [],
            device_files=device_files(machine.inventory[s] for s in slots) if machine.inventory else [],
            numa=_numa(machine, slots),
            slot_kind=machine.kind,
            cpu_threads=cpu_threads(machine.kind, machine.slots, machine.cores),
            **more,
        )

    def _watch(self, nodes: list[OpenNode], lost: set[str]) -> None:
        """Handle nodes that no longer report: a dead agent at once, a silent one after its timeout."""
        cancelled: set[str] = set()
        run_all(partial(self._watch_one, node, nodes, lost, cancelled) for node in nodes if not node.state.is_terminal)

    def _watch_one(self, node: OpenNode, nodes: list[OpenNode], lost: set[str], cancelled: set[str]) -> None:
        """Check one node. `cancelled` collects the attempts that were removed from an engine's queue in this pass."""
        key = (node.attempt_id, node.index)
        if node.attempt_id in cancelled:
            return
        state = self.ctx.engine.status(*key)
        if state is AgentState.WAITING and not node.over:
            self.ctx.live.beat(*key)  # waiting in the engine's own queue has no timeout
            return
        if state is AgentState.WAITING:
            cancelled.add(node.attempt_id)
            self.ctx.engine.cancel(node.attempt_id)
            gang = [n.index for n in nodes if n.attempt_id == node.attempt_id]
            self._lose(node.attempt_id, gang, "removed from the engine's queue", told=True)
            return
        timeout_s = (
            self.ctx.settings.start_timeout_s if node.state is NodeState.PENDING else self.ctx.settings.node_timeout_s
        )
        silent_s = self.ctx.live.silence_s(*key)
        timeout_s += self.ctx.live.machine_lag.allowance_s(*key, timeout_s)
        if state is AgentState.ALIVE and silent_s <= timeout_s:
            self._gone_since.pop(key, None)
        elif state is AgentState.ALIVE:
            self.ctx.queue.shun(node.machine)
            self.ctx.engine.cancel(node.attempt_id)
            self._lose(node.attempt_id, [node.index], f"no heartbeat from its agent for {timeout_s:.0f} s")
        elif state is AgentState.UNKNOWN:
            self._lose(node.attempt_id, [node.index], NEVER_STARTED)
        elif node.machine in lost:
            self.ctx.engine.salvage(*key)  # takes effect when the machine is back
            self._lose(node.attempt_id, [node.index], f"its machine '{node.machine}' was lost")
        else:
            self._recover_dead(node, timeout_s, silent_s)

    def _recover_dead(self, node: OpenNode, timeout_s: float, silent_s: float) -> None:
        """Start the recovery of a node whose agent died; declare it lost if nothing is reported within the timeout.

        The recovery process ends the workers that the agent left behind, and reports for it.
        """
        key = (node.attempt_id, node.index)
        now = self.ctx.live.lag.awake_s()
        since = self._gone_since.setdefault(key, now)
        self.ctx.engine.salvage(*key)
        if max(now - since, silent_s) > timeout_s:
            word = self.ctx.engine.last_word(*key) or ""
            self._lose(node.attempt_id, [node.index], word if word.startswith(JOIN_REFUSED) else "its agent died")
            self._gone_since.pop(key, None)

    def _lose(self, attempt_id: str, indexes: range | list[int], reason: str, *, told: bool = False) -> None:
        def work(session: Session) -> str:
            attempt = session.get_one(Attempt, attempt_id)
            for index in indexes:
                node = session.get_one(Node, (attempt_id, index))
                attempts.node_lost(session, self.ctx.usage_clock, attempt, node, reason, told=told)
            return attempt.job_id

        self.ctx.live.job_changed(self.ctx.db.write(work, essential=True), schedule=True)

    def _end_hopeless(self, job_id: str) -> None:
        """Stop a queued job that was to start after the success of a job that did not succeed."""

        def work(session: Session) -> None:
            job = session.get(Job, job_id)
            if job is not None and job.state == JobState.QUEUED and (reason := after.why_never(session, job)):
                request_stop(session, job, reason, JobState.STOPPED)

        self.ctx.db.write(work, essential=True)
        self.ctx.live.job_changed(job_id, schedule=True)

    def _end_sweep(self, sweep_id: str, text: str) -> None:
        self.ctx.db.write(lambda session: budgets.stop_sweep(session, sweep_id, text), essential=True)
        self.ctx.live.sweep_changed(sweep_id)

    def _hit_limit(self, job_id: str, text: str) -> None:
        self.ctx.db.write(
            lambda session: request_stop(session, session.get_one(Job, job_id), text, JobState.FAILED), essential=True
        )
        self.ctx.live.job_changed(job_id)


_OVER = Attempt.fenced | Job.stop_requested_at.is_not(None)


def _numa(machine: Machine, slots: tuple[int, ...]) -> list[int]:
    """Return the NUMA node of each slot's accelerator; empty if none is known."""
    nodes = [machine.inventory[slot].numa for slot in slots] if machine.inventory else []
    return [-1 if node is None else node for node in nodes] if any(node is not None for node in nodes) else []


def _numbers(machine: Machine, slots: tuple[int, ...]) -> list[int]:
    """Return the numbers of the accelerators of these slots, for tools that count in PCI order."""
    if machine.devices:
        return [machine.devices[slot] for slot in slots]
    return [machine.inventory[slot].index for slot in slots] if machine.inventory else list(slots)


def _open_nodes(session: Session) -> list[OpenNode]:
    rows = session.execute(
        select(Attempt.job_id, Node.attempt_id, Node.index, Node.machine, Node.slots, Node.state, _OVER)
        .join(Attempt, Attempt.id == Node.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.state != AttemptState.ENDED.value)
    )
    return [OpenNode(j, a, i, m, tuple(s), NodeState(state), over) for j, a, i, m, s, state, over in rows]


def _over_time(session: Session) -> list[tuple[str, str]]:
    """Return (job id, reason) of running jobs past their time limit, which counts the run time of all attempts."""
    now, over = utcnow(), []
    open_jobs = (
        select(Job.id, Job.spec, Job.started_at, Attempt.started_at)
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.state != AttemptState.ENDED.value, Attempt.started_at.is_not(None))
        .where(Job.ended_at.is_(None), Job.stop_requested_at.is_(None))
    )
    for job_id, spec, since, started in session.execute(open_jobs):
        limit = spec.get("time_limit_s")
        if limit and started and (now - started).total_seconds() + ran_s(session, job_id, since) > limit:
            over.append((job_id, f"time limit of {timedelta(seconds=limit)} reached"))
    return over
