"""The scheduler at work: look, decide, act; and the watchdog over silent nodes. One thread, woken by every change."""

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

from shoal.agent.wire import JOIN_REFUSED
from shoal.core.agents import Launch
from shoal.core.errors import Refused, ShoalError
from shoal.core.ids import new_id
from shoal.core.loops import Loop, run_all
from shoal.core.schema import utcnow
from shoal.core.settings import Layout
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.engines.base import AgentState, Gang, Machine
from shoal.engines.slots import cpu_threads
from shoal.server.context import Context
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.policy import hash_token
from shoal.server.scheduler.decide import Decision, Placement, decide
from shoal.server.scheduler.memory import ran_s
from shoal.server.scheduler.tend import Tending
from shoal.server.services import attempts, budgets, ledger, preflights
from shoal.server.services.agents import read_token
from shoal.server.services.disk_use import DiskWatch
from shoal.server.services.jobs import request_preempt, request_stop
from shoal.server.services.keys import flush_touched

logger = logging.getLogger(__name__)
_TICK_S = 1.0
_HOUSEKEEPING_S = 60.0


@dataclass(frozen=True, slots=True)
class OpenNode:
    job_id: str
    attempt_id: str
    index: int
    machine: str
    slots: tuple[int, ...]
    state: NodeState
    over: bool
    """Its attempt was given up, or its job told to end."""


class Scheduler:
    def __init__(self, ctx: Context, url: str):
        self.ctx, self.url = ctx, url
        self._loop = Loop(
            "scheduler", self._step, wait=ctx.live.scheduler.wait, is_closing=lambda: ctx.live.closing, every_s=_TICK_S
        )
        self._kept_house_at = time.monotonic()
        self._gone_since: dict[tuple[str, int], float] = {}
        self._renewed_at = float("-inf")
        self._tending, self._disk = Tending(ctx), DiskWatch(ctx)

    def start(self) -> None:
        self.ctx.loops.start(self._loop)

    def stop(self) -> None:
        """After `live.close()`: let the present pass end."""
        self._loop.stop()

    def _step(self) -> None:
        self.ctx.live.scheduler.clear()
        try:
            self.pass_once()
        finally:
            self._housekeep()

    def _housekeep(self) -> None:
        self._disk.look()
        preflights.see_off(self.ctx)
        if time.monotonic() - self._kept_house_at > _HOUSEKEEPING_S or self.ctx.live.closing:
            self._kept_house_at = time.monotonic()
            flush_touched(self.ctx)
            preflights.clear(self.ctx)

    def pass_once(self) -> None:
        machines = self.ctx.engine.capacity()
        with self.ctx.db.read() as session:
            nodes, limits = _open_nodes(session), _over_time(session)
            spent, sweeps = budgets.used_up(session, self.ctx)
            seen = self.ctx.queue.look(session, machines, self.ctx.settings)
        # Each does its part though another fails: a write that is refused must not keep silent nodes from being noticed.
        stages: list[Callable[[], object]] = [partial(self._renew, nodes)]
        stages += [partial(self._hit_limit, job_id, text) for job_id, text in limits + spent]
        stages += [partial(self._end_sweep, sweep_id, text) for sweep_id, text in sweeps]
        stages.append(partial(self._watch, nodes, {m.name for m in machines if m.state == "lost"}))
        stages.append(partial(self._tending.watch, nodes))
        stages.append(lambda: self._act(decide(seen)))
        run_all(stages)

    def _renew(self, nodes: list[OpenNode]) -> None:
        """What nodes have used lasts from now on, should this be the server's last moment."""
        if nodes and time.monotonic() - self._renewed_at >= _TICK_S:
            self._renewed_at = time.monotonic()
            try:
                self.ctx.db.write(lambda session: ledger.renew(session, self.ctx.meter), essential=True)
            except ShoalError as error:  # a full disk must not keep us from watching
                logger.warning("what nodes have used could not be written: %s", error)

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
            return request_preempt(session, job, f"made way for {what} with priority {other.priority}")

        if self.ctx.db.write(work, essential=True):
            self.ctx.live.job_changed(job_id)

    def _start(self, job_id: str, gang: list[Placement]) -> None:
        attempt_id = new_id("att")
        token_hash = hash_token(read_token(self.ctx, attempt_id))
        machines = self.ctx.engine.capacity()

        def work(session: Session) -> tuple[Attempt, list[str]] | None:
            made = attempts.create(session, job_id, gang, attempt_id, token_hash)
            if made is not None:
                ledger.open_nodes(session, self.ctx.meter, made[0], machines, self.ctx.settings)
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
            self._lose(attempt.id, range(len(gang)), f"the agent could not be started: {error}")

    def _gang(self, attempt: Attempt, gang: list[Placement], tokens: list[str]) -> Gang:
        with self.ctx.db.read() as session:
            job = session.get_one(Job, attempt.job_id)
        machines = {m.name: m for m in self.ctx.engine.capacity()}
        if missing := [node.machine for node in gang if node.machine not in machines]:
            raise Refused(f"machine '{missing[0]}' has left the pool")
        # Nodes here reach the server by loopback; nodes elsewhere reach them where they reach the server.
        elsewhere = next((machines[node.machine].url for node in gang if machines[node.machine].url), None)
        return Gang(
            attempt_id=attempt.id,
            exclude=(*job.spec["exclude"], *self.ctx.queue.shunned, *sorted(self.ctx.queue.avoided(job.id))),
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
            server_file=None if away else str(layout.server_file),
            instance=self.ctx.instance or None,
            hide=[str(path) for path in dict.fromkeys([*layout.private_paths(), *there.private_paths()])],
            store_path=None if away or self.ctx.settings.store else str(layout.store_dir),
            work_dir=str(there.nodes_dir / f"{attempt.id}.{index}"),
            cache_dir=str(there.cache_dir),
            python=machine.python or sys.executable,
            machine=machine.name,
            slots=[machine.devices[s] for s in slots] if machine.devices else list(slots),
            slot_kind=machine.kind,
            cpu_threads=cpu_threads(machine.kind, machine.slots, machine.cores),
            **more,
        )

    def _watch(self, nodes: list[OpenNode], lost: set[str]) -> None:
        """Decide on nodes that no longer speak: a dead agent at once, a silent one when its lease is over."""
        left: set[str] = set()
        run_all(partial(self._watch_one, node, nodes, lost, left) for node in nodes if not node.state.is_terminal)

    def _watch_one(self, node: OpenNode, nodes: list[OpenNode], lost: set[str], left: set[str]) -> None:
        """`left`: attempts that were taken out of an engine's queue in this pass."""
        key = (node.attempt_id, node.index)
        if node.attempt_id in left:
            return
        state = self.ctx.engine.status(*key)
        if state is AgentState.WAITING and not node.over:
            self.ctx.live.beat(*key)  # the engine's own queue is as long as it is
            return
        if state is AgentState.WAITING:
            left.add(node.attempt_id)
            self.ctx.engine.cancel(node.attempt_id)
            gang = [n.index for n in nodes if n.attempt_id == node.attempt_id]
            self._lose(node.attempt_id, gang, "taken out of the engine's queue", told=True)
            return
        lease = self.ctx.settings.start_timeout_s if node.state is NodeState.PENDING else self.ctx.settings.lease_s
        silent = self.ctx.live.silence_s(*key)
        if state is AgentState.ALIVE and silent <= lease:
            self._gone_since.pop(key, None)
        elif state is AgentState.ALIVE:
            self.ctx.queue.shun(node.machine)
            self.ctx.engine.cancel(node.attempt_id)
            self._lose(node.attempt_id, [node.index], f"no word from its agent for {lease:.0f} s")
        elif state is AgentState.UNKNOWN:
            self._lose(node.attempt_id, [node.index], "its agent was never started")
        elif node.machine in lost:
            self.ctx.engine.salvage(*key)  # whenever the machine is back
            self._lose(node.attempt_id, [node.index], f"its machine '{node.machine}' was lost")
        else:
            self._bury(node, lease, silent)

    def _bury(self, node: OpenNode, lease: float, silent: float) -> None:
        """Its agent died. A salvager ends what it left and reports for it; if nobody speaks, the node is lost."""
        key = (node.attempt_id, node.index)
        since = self._gone_since.setdefault(key, time.monotonic())
        self.ctx.engine.salvage(*key)
        if max(time.monotonic() - since, silent) > lease:
            word = self.ctx.engine.last_word(*key) or ""
            self._lose(node.attempt_id, [node.index], word if word.startswith(JOIN_REFUSED) else "its agent died")
            self._gone_since.pop(key, None)

    def _lose(self, attempt_id: str, indexes: range | list[int], reason: str, *, told: bool = False) -> None:
        def work(session: Session) -> str:
            attempt = session.get_one(Attempt, attempt_id)
            for index in indexes:
                node = session.get_one(Node, (attempt_id, index))
                attempts.node_lost(session, self.ctx.meter, attempt, node, reason, told=told)
            return attempt.job_id

        self.ctx.live.job_changed(self.ctx.db.write(work, essential=True), schedule=True)

    def _end_sweep(self, sweep_id: str, text: str) -> None:
        self.ctx.db.write(lambda session: budgets.stop_sweep(session, sweep_id, text), essential=True)
        self.ctx.live.sweep_changed(sweep_id)

    def _hit_limit(self, job_id: str, text: str) -> None:
        self.ctx.db.write(
            lambda session: request_stop(session, session.get_one(Job, job_id), text, JobState.FAILED), essential=True
        )
        self.ctx.live.job_changed(job_id)


_OVER = Attempt.fenced | Job.stop_requested_at.is_not(None)


def _open_nodes(session: Session) -> list[OpenNode]:
    rows = session.execute(
        select(Attempt.job_id, Node.attempt_id, Node.index, Node.machine, Node.slots, Node.state, _OVER)
        .join(Attempt, Attempt.id == Node.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.state != AttemptState.ENDED.value)
    )
    return [OpenNode(j, a, i, m, tuple(s), NodeState(state), over) for j, a, i, m, s, state, over in rows]


def _over_time(session: Session) -> list[tuple[str, str]]:
    """Running jobs past their limit, counted over the time all their attempts have run."""
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
