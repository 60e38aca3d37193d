"""Life of an attempt: created by the scheduler, changed by the reports of its agents, closed when its last node has ended.

When the first node fails the attempt is `fenced`: the other agents are told to kill their workers. The cause is determined and
the next step decided only when all nodes have ended, so a new attempt never runs beside workers of the old one.
"""

from __future__ import annotations

import secrets
import signal
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from shoal.core.faults import Fault, classify, is_before_start
from shoal.core.jobs import unfinished
from shoal.core.schema import utcnow
from shoal.core.states import AttemptState, JobState, NodeState
from shoal.server.billing import ledger
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.jobs.events import move, record_event
from shoal.server.models.checkpoints import Checkpoint, holds_state, is_of_output
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.policy import hash_token
from shoal.server.queue import quotas
from shoal.server.scheduler.decide import Placement
from shoal.server.scheduler.restarts import Cause, Failure, judge


def create(
    session: Session, job_id: str, gang: list[Placement], attempt_id: str, read_token_hash: bytes
) -> tuple[Attempt, list[str]] | None:
    """Create an attempt with one token per node; return None if the job may no longer start (stopped, deleted, over quota)."""
    job = session.get(Job, job_id)
    if job is None or job.state != JobState.QUEUED or job.stop_requested_at is not None:
        return None
    if not quotas.has_room(session, job.workspace_id, sum(len(node.slots) for node in gang)):
        return None
    job.attempts += 1
    attempt = Attempt(
        id=attempt_id,
        read_token_hash=read_token_hash,
        job_id=job.id,
        number=job.attempts,
        state=AttemptState.STARTING.value,
        num_nodes=len(gang),
        created_at=utcnow(),
    )
    session.add(attempt)
    session.flush()
    tokens = [f"shoala_{secrets.token_urlsafe(32)}" for _ in gang]
    for index, (node, token) in enumerate(zip(gang, tokens, strict=True)):
        session.add(
            Node(
                attempt_id=attempt.id,
                index=index,
                machine=node.machine,
                slots=list(node.slots),
                state=NodeState.PENDING.value,
                token_hash=hash_token(token),
            )
        )
    job.reason = None
    where = [{"machine": n.machine, "slots": list(n.slots)} for n in gang]
    text = f"attempt {attempt.number} on {len(gang)} node{'s' if len(gang) > 1 else ''}"
    move(session, job, JobState.STARTING, text, attempt=attempt.number, data={"nodes": where})
    return attempt, tokens


def node_running(session: Session, attempt: Attempt, node: Node) -> None:
    node.state = NodeState.RUNNING.value
    session.flush()
    waiting = (NodeState.PENDING, NodeState.PREPARING)
    if attempt.state != AttemptState.STARTING or any(n.state in waiting for n in nodes_of(session, attempt)):
        return
    attempt.state, attempt.started_at = AttemptState.RUNNING.value, utcnow()
    job = session.get_one(Job, attempt.job_id)
    job.started_at = job.started_at or attempt.started_at
    move(session, job, JobState.RUNNING, f"attempt {attempt.number} is running", attempt=attempt.number)


def node_ended(
    session: Session,
    attempt: Attempt,
    node: Node,
    *,
    state: NodeState,
    exit_code: int | None,
    failed_rank: int | None,
    reason: str | None,
    told: bool,
) -> None:
    if exit_code == 0 or (failed_rank is not None and not is_before_start(reason or "")):
        node_running(session, attempt, node)  # its workers ran, but ended before the next heartbeat
    was_running = node.state == NodeState.RUNNING
    job = session.get_one(Job, attempt.job_id)
    if told and not attempt.fenced and job.stop_requested_at is None:
        # The stop did not come from the server: the machine is shutting down. The workers were not finished.
        state, reason, told, exit_code = NodeState.LOST, "its machine stopped it (SIGTERM)", False, None
    if node.blamed and (told or exit_code != 0):  # by the server: what its agent reports is a consequence
        exit_code, failed_rank, reason, told = None, node.failed_rank, node.reason, False
    node.state, node.exit_code, node.failed_rank, node.ended_at = state.value, exit_code, failed_rank, utcnow()
    node.reason, node.blamed = reason, not told and exit_code != 0
    session.flush()
    if node.blamed and not attempt.fenced:
        kind = "node_lost" if state is NodeState.LOST else ("worker_failed" if was_running else "setup_failed")
        record_event(session, job, kind, describe(node), attempt=attempt.number)
        if job.stop_requested_at is None:  # else the other nodes are stopping already, and may be saving
            fence(session, job, attempt)
    if all(NodeState(n.state).is_terminal for n in nodes_of(session, attempt)):
        _close_attempt(session, job, attempt)


def node_lost(
    session: Session, usage_clock: UsageClock, attempt: Attempt, node: Node, reason: str, *, told: bool = False
) -> None:
    """End a node that cannot report its own end; its usage counts up to its last sign of life. An ended node stays as it is."""
    if NodeState(node.state).is_terminal:
        return
    node_ended(
        session,
        attempt,
        node,
        state=NodeState.LOST,
        exit_code=None,
        failed_rank=None,
        reason=reason,
        told=told or attempt.fenced,
    )
    ledger.end_node(session, usage_clock, attempt.id, node.index, timeout_s=None)


def fence(session: Session, job: Job, attempt: Attempt) -> None:
    attempt.fenced = True
    if attempt.num_nodes > 1:
        record_event(
            session,
            job,
            "fenced",
            f"attempt {attempt.number} has failed; its other nodes are stopped",
            attempt=attempt.number,
        )


def give_up(session: Session, attempt_id: str, reason: str) -> None:
    """End an attempt that makes no progress: its nodes kill their workers, then the restart rules apply."""
    attempt = session.get_one(Attempt, attempt_id)
    if attempt.fenced or attempt.state == AttemptState.ENDED:
        return
    job = session.get_one(Job, attempt.job_id)
    attempt.reason = reason
    record_event(session, job, "stalled", f"attempt {attempt.number} is ended: {reason}", attempt=attempt.number)
    fence(session, job, attempt)


def blame(session: Session, attempt: Attempt, index: int, rank: int, reason: str) -> None:
    """End an attempt because of a fault of a node's machine that the server knows of: its nodes kill their workers."""
    if attempt.fenced or attempt.state == AttemptState.ENDED:
        return
    node = session.get_one(Node, (attempt.id, index))
    node.blamed, node.failed_rank, node.reason = True, rank, reason
    fence(session, session.get_one(Job, attempt.job_id), attempt)


def nodes_of(session: Session, attempt: Attempt) -> list[Node]:
    return list(session.scalars(select(Node).where(Node.attempt_id == attempt.id).order_by(Node.index)))


def describe(node: Node) -> str:
    """Describe in one line which rank or node failed, and how."""
    where = f"rank {node.failed_rank} on node {node.index}" if node.failed_rank is not None else f"node {node.index}"
    how = node.reason or (f"exit code {node.exit_code}" if node.exit_code is not None else "lost")
    return f"{where}: {how}"


def _close_attempt(session: Session, job: Job, attempt: Attempt) -> None:
    attempt.state, attempt.ended_at, attempt.fenced = AttemptState.ENDED.value, utcnow(), True
    nodes = nodes_of(session, attempt)
    blamed = [n for n in nodes if n.blamed]
    if not blamed and all(n.exit_code == 0 for n in nodes) and job.stop_requested_at is None:
        attempt.result, job.exit_code, job.reason = "succeeded", 0, None
        _record_end(session, job, attempt, "all workers succeeded")
        _finish_progress(job)
        move(session, job, JobState.SUCCEEDED, "finished", attempt=attempt.number)
    elif job.stop_state == JobState.QUEUED:
        _requeue_preempted(session, job, attempt)
    elif job.stop_requested_at is not None:
        attempt.result = attempt.reason = job.reason = job.stop_reason
        _record_end(session, job, attempt, job.stop_reason or "stopped")
        if job.stop_state == JobState.FAILED and job.progress:
            job.progress = unfinished(job.progress)
        move(
            session,
            job,
            JobState(job.stop_state or JobState.STOPPED),
            job.stop_reason or "stopped",
            attempt=attempt.number,
        )
    else:
        _after_failure(session, job, attempt, _root_cause(blamed or nodes))


def _requeue_preempted(session: Session, job: Job, attempt: Attempt) -> None:
    """Queue a preempted job again; it will continue from its newest checkpoint."""
    attempt.result, attempt.reason, job.reason = "preempted", job.stop_reason, job.stop_reason
    job.stop_requested_at = job.stop_reason = job.stop_state = None
    job.best_step = max((job.progress or {}).get("step", -1), job.best_step)
    _record_end(session, job, attempt, attempt.reason or "preempted")
    move(session, job, JobState.QUEUED, "waits for free slots again", attempt=attempt.number)


def _after_failure(session: Session, job: Job, attempt: Attempt, root: Node) -> None:
    is_stalled = attempt.reason is not None  # set by `give_up`; the exit codes of the killed workers mean nothing
    attempt.result, attempt.reason = "failed", attempt.reason or describe(root)
    _record_end(session, job, attempt, attempt.reason)
    step = (job.progress or {}).get("step", -1)
    mine = select(Checkpoint.id).where(Checkpoint.job_id == job.id, Checkpoint.attempt == attempt.number)
    saved = session.scalar(mine.where(holds_state(), is_of_output()).limit(1))
    progressed = step > job.best_step or saved is not None
    job.best_step = max(step, job.best_step)
    verdict = judge(
        Failure(
            cause=Cause.STALLED if is_stalled else _cause(root, attempt),
            reason=root.reason or "",
            progressed=progressed,
            complete=_is_complete(job.progress or {}),
            restarts_used=job.restarts_used,
            max_restarts=job.spec["max_restarts"],
            fails_on_stall=job.spec.get("on_stall") == "fail",
        )
    )
    job.restarts_used, job.reason = verdict.restarts_used, attempt.reason
    if verdict.restart:
        move(session, job, JobState.QUEUED, verdict.why, attempt=attempt.number)
        return
    job.exit_code = shell_code(root.exit_code)
    job.progress = unfinished(job.progress) if job.progress else job.progress
    move(session, job, JobState.FAILED, f"{attempt.reason} ({verdict.why})", attempt=attempt.number)


def _is_complete(progress: dict[str, Any]) -> bool:
    """Return whether the last step was done, as the SDK counts; a full bar in the output may be that of a download."""
    return progress.get("source") == "sdk" and (progress.get("fraction") or 0.0) >= 1


def _record_end(session: Session, job: Job, attempt: Attempt, text: str) -> None:
    record_event(session, job, "attempt_ended", f"attempt {attempt.number}: {text}", attempt=attempt.number)


def _root_cause(nodes: list[Node]) -> Node:
    """Return the node that most likely caused the failure.

    A failing worker makes its peers fail with errors of their own, mostly network errors, which may be reported first.
    """
    order = {Cause.SIGNAL: 0, Cause.LOST: 1, Cause.SETUP: 2, Cause.ERROR: 3}

    def rank(node: Node) -> tuple[int, bool, datetime]:
        consequence = classify(node.reason or "") is Fault.NETWORK
        return order[_node_cause(node)], consequence, node.ended_at or utcnow()

    return min(nodes, key=rank)


def _node_cause(node: Node) -> Cause:
    if node.state == NodeState.LOST or node.exit_code is None:
        return Cause.LOST
    return Cause.SIGNAL if node.exit_code < 0 else Cause.ERROR


def _cause(root: Node, attempt: Attempt) -> Cause:
    cause = _node_cause(root)
    # It exited before its workers ran: the cause is the source, the data or the requirements.
    is_early = root.failed_rank is None or is_before_start(root.reason or "")
    return Cause.SETUP if cause is Cause.ERROR and attempt.started_at is None and is_early else cause


def shell_code(exit_code: int | None) -> int | None:
    """Return an exit code as shells show it: 128 + n for a process killed by signal n."""
    return 128 - exit_code if exit_code is not None and exit_code < 0 else exit_code


def signal_name(exit_code: int) -> str:
    return signal.Signals(-exit_code).name


def _finish_progress(job: Job) -> None:
    if job.progress and job.progress.get("total"):
        job.progress = {**job.progress, "fraction": 1.0, "eta_s": None, "eta_low_s": None, "eta_high_s": None}
