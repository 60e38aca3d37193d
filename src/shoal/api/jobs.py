"""Jobs of a workspace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from shoal.api.checkpoints import Checkpoint
from shoal.api.frames import Table
from shoal.api.metrics import Metrics, of_view

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.jobs import JobSummary, JobView


_END = 1 << 53
"""Cursor behind all log lines."""


class Job:
    """A job on the server, made by `Workspace.run` and `Workspace.job`.

    `view` has all facts about it. Until the job has ended they are read again whenever they are asked for.
    """

    def __init__(self, client: Client, job: str | JobSummary):
        self._client = client
        self._view: JobSummary = client.jobs.get(job) if isinstance(job, str) else job

    @property
    def id(self) -> str:
        """Id of the job."""
        return self._view.id

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._view.name

    @property
    def view(self) -> JobView:
        """All facts about the job at this moment."""
        from shoal.core.jobs import JobView

        if not isinstance(self._view, JobView) or not self._view.status.is_terminal:
            self._view = self._client.jobs.get(self.id)
        assert isinstance(self._view, JobView)  # noqa: S101
        return self._view

    @property
    def status(self) -> str:
        """Present state: queued, starting, running, restarting, succeeded, failed or stopped."""
        return str(self.view.status)

    @property
    def reason(self) -> str | None:
        """Reason why it failed, was stopped or waits."""
        return self.view.reason or self.view.waiting

    def wait(self, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended; raise TimedOut after `timeout_s`.

        Args:
            timeout_s: Longest time to wait in seconds; None: without limit.

        Returns:
            The job itself.

        Example:
            >>> space.run("train.py").wait().status
            'succeeded'
        """
        self._view = self._client.jobs.wait(self.id, timeout_s=timeout_s)
        for _ in self._client.jobs.follow(self.id, after=_END):
            pass  # until its last records have arrived, which may be a moment later
        return self

    def lines(self, *, rank: int | None = None) -> Iterator[str]:
        """Yield the log lines that there are now.

        Args:
            rank: Only those of this worker.

        Returns:
            The lines, without their ends.

        Example:
            >>> [line for line in job.lines(rank=0) if "loss" in line]
        """
        return (line.text for line in self._client.jobs.lines(self.id, rank=rank))

    def follow(self, say: Callable[[str], object] | None = None) -> Job:
        """Pass on each log line as it arrives, until the job has ended.

        Args:
            say: Called with each line; default: print it.

        Returns:
            The job itself.

        Example:
            >>> space.run("train.py").follow()
        """
        from shoal.client.follow import Lines

        for event in self._client.jobs.follow(self.id):
            if isinstance(event, Lines):
                for line in event.lines:
                    (say or _print)(line.text)
        return self.wait()

    def watch(self) -> Job:
        """Show a live chart and the last lines in a notebook, until the job has ended; elsewhere, print the lines.

        Returns:
            The job itself. Interrupting the cell stops watching; the job continues.

        Example:
            >>> space.run("train.py").watch()
        """
        from shoal.api.watch import watch

        watch(self._client, self._view)
        self._view = self._client.jobs.get(self.id)
        return self

    def metrics(self, *names: str, points: int | None = None, axis: str = "step") -> Metrics:
        """Return metrics.

        Args:
            names: Metrics to read; none for all of them.
            points: Resolution: about so many points of each metric, with its peaks. None: all points.
            axis: x of the points: 'step', or 'time' for seconds since the start.

        Returns:
            A mapping from names to points, with `frame()` and `last`; a chart in notebooks.

        Example:
            >>> job.metrics("loss").last
            {'loss': 0.31}
        """
        return of_view(self._client.metrics.read(self.id, names, points=points, axis=axis), axis)

    def checkpoints(self) -> Table[Checkpoint]:
        """Return the checkpoints, oldest first.

        Returns:
            A list, which `frame()` makes a data frame.

        Example:
            >>> job.checkpoints()[-1].download()
        """
        return Table(Checkpoint(self._client, one) for one in self._client.checkpoints.list(self.id))

    def stop(self) -> None:
        """Request the job to stop: it saves, if it can, and ends.

        Example:
            >>> job.stop()
        """
        self._view = self._client.jobs.stop(self.id)

    def resume(self) -> Job:
        """Continue a stopped or failed job from its newest checkpoint.

        Returns:
            The job itself.

        Example:
            >>> space.job("first").resume().wait()
        """
        self._view = self._client.jobs.resume(self.id)
        return self

    def delete(self) -> None:
        """Delete the job, which must have ended, with its log and checkpoints.

        Example:
            >>> job.delete()
        """
        self._client.jobs.delete(self.id)

    def facts(self) -> dict[str, Any]:
        """Return its main facts as column → value.

        Example:
            >>> job.facts()["ended_at"]
        """
        view = self._view
        times = {"created_at": view.created_at, "started_at": view.started_at, "ended_at": view.ended_at}
        known = {"name": view.name, "status": str(view.status), "nodes": view.nodes, "accels": view.accels}
        return {**known, **times, "tags": view.tags, "id": view.id}

    def __repr__(self) -> str:
        view = self._view if self._view.status.is_terminal else self.view
        at = f" {view.progress.fraction:.0%}" if view.progress and view.progress.fraction is not None else ""
        return f"Job({view.name}, {view.status}{at})"


def _print(line: str) -> None:
    print(line)
    sys.stdout.flush()
