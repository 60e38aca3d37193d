"""The states a job, an attempt and a node go through, and which moves are legal."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL

    def may_become(self, other: JobState) -> bool:
        return other in _JOB_MOVES[self]


_TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED})
_JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.FAILED, JobState.STOPPED}),
    # Back to queued when an attempt is lost and the next one has to wait for room.
    JobState.STARTING: frozenset({JobState.QUEUED, JobState.RUNNING, *_TERMINAL}),
    JobState.RUNNING: frozenset({JobState.QUEUED, *_TERMINAL}),
    JobState.SUCCEEDED: frozenset(),
    # A person may resume these; nothing else reopens them.
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.STOPPED: frozenset({JobState.QUEUED}),
}


class AttemptState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class NodeState(StrEnum):
    """What an agent says of its node; `LOST` is the server's own verdict when it hears nothing."""

    PENDING = "pending"
    PREPARING = "preparing"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        return self in (NodeState.EXITED, NodeState.LOST)
