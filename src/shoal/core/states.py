"""States of a job, an attempt and a node, and the allowed transitions."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """State of a job."""

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
        """Return whether a job may change from this state to `other`."""
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
    """State of an attempt."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class NodeState(StrEnum):
    """State of a node, as reported by its agent. `LOST` is set by the server when heartbeats stop."""

    PENDING = "pending"
    PREPARING = "preparing"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        return self in (NodeState.EXITED, NodeState.LOST)
