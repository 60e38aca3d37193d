"""Jobs: submit, list, follow, stop, delete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING

from shoal.client._http import parse, segment
from shoal.client._noun import WorkspaceNoun, wait_until
from shoal.client.follow import PATIENCE_S, Follower
from shoal.client.waiting import Clock
from shoal.core.errors import NotFound, TimedOut
from shoal.core.jobs import JobSpec, JobSummary, JobView, LogLine, LogPage
from shoal.core.stacks import StacksRequested, StacksView

if TYPE_CHECKING:
    from shoal.core.attach import AttachView, JupyterView

_STACKS_POLL_S = 0.2


class Jobs(WorkspaceNoun):
    """Jobs of a workspace. Each is given by its name or id."""

    def create(
        self, spec: JobSpec, *, preflight: str | None = None, replace: bool = False, reuse: bool = False
    ) -> JobView:
        """Submit a job.

        `preflight`: id of a preflight whose findings are stored with the job; the preflight itself is then removed.
        `replace`: delete the finished job of the same name, if there is one.
        `reuse`: return a job that succeeded with the same code, inputs and options instead, if there is one.
        """
        params = {"preflight": preflight, "replace": "true" if replace else None, "reuse": "true" if reuse else None}
        found = self._http.send("POST", self._path("jobs"), body=spec, params=params)
        return parse(JobView, found)

    def list(
        self,
        *,
        status: str | None = None,
        search: str | None = None,
        limit: int | None = None,
        before: str | None = None,
    ) -> list[JobSummary]:
        """List jobs, newest first."""
        path = self._path("jobs")
        return self._http.fetch(list[JobSummary], path, status=status, search=search, limit=limit, before=before)

    def get(self, job: str) -> JobView:
        return self._http.fetch(JobView, self._job(job))

    def stop(self, job: str) -> JobView:
        """Request the job to stop. Nothing changes if it has ended or is already stopping."""
        return self._http.call(JobView, "POST", self._job(job, "stop"), repeatable=True)

    def resume(self, job: str) -> JobView:
        """Continue a stopped or failed job, from its newest complete checkpoint if it has one."""
        return self._http.call(JobView, "POST", self._job(job, "resume"))

    def stacks(self, job: str, *, timeout_s: float = 15.0, clock: Clock = time.monotonic) -> StacksView:
        """Return the present stacks of the job's workers.

        Workers that do not answer in time are left out. Raise TimedOut if none answers.
        """
        request_id = self._http.call(StacksRequested, "POST", self._job(job, "stacks"), repeatable=True).order
        deadline = clock() + timeout_s
        while True:
            found = self._latest_stacks(job, request_id)
            if (found is not None and found.complete) or clock() >= deadline:
                break
            self._http.sleep(_STACKS_POLL_S)
        if found is None:
            raise TimedOut(
                f"No worker of job '{job}' has reported its stack within {timeout_s:.0f} seconds.",
                hint=f"shoal training inspect {job}",
            )
        return found

    def attach(self, job: str, public_key: str, node: int = 0) -> AttachView:
        """Request a shell on a node for this key. Repeat until it is ready."""
        from shoal.core.attach import AttachRequest, AttachView

        ask = AttachRequest(public_key=public_key, node=node)
        return self._http.call(AttachView, "POST", self._job(job, "attach"), ask, repeatable=True)

    def jupyter(self, job: str, node: int = 0) -> JupyterView:
        """Request JupyterLab on a node. Repeat until it is ready."""
        from shoal.core.attach import JupyterRequest, JupyterView

        ask = JupyterRequest(node=node)
        return self._http.call(JupyterView, "POST", self._job(job, "jupyter"), ask, repeatable=True)

    def _latest_stacks(self, job: str, request_id: str) -> StacksView | None:
        try:
            found = self._http.fetch(StacksView, self._job(job, "stacks"))
        except NotFound:
            return None
        return found if found.order == request_id else None

    def delete(self, job: str) -> None:
        """Delete a job that has ended."""
        self._http.send("DELETE", self._job(job))

    def wait(self, job: str, *, timeout_s: float | None = None, clock: Clock = time.monotonic) -> JobView:
        """Wait until the job has ended, and return it; raise TimedOut after `timeout_s`."""
        return wait_until(
            self._http,
            lambda: self.get(job),
            lambda view: view.status.is_terminal,
            what="Job",
            timeout_s=timeout_s,
            clock=clock,
        )

    def logs(
        self,
        job: str,
        *,
        after: int = 0,
        node: int | None = None,
        rank: int | None = None,
        since: datetime | None = None,
        attempt: int | None = None,
        limit: int | None = None,
    ) -> LogPage:
        """Return one page of log lines. While `page.more`, pass `after=page.cursor` to get the next page."""
        return self._http.fetch(
            LogPage,
            self._job(job, "logs"),
            after=after,
            node=node,
            rank=rank,
            since=_seconds(since),
            attempt=attempt,
            limit=limit,
        )

    def lines(
        self,
        job: str,
        *,
        node: int | None = None,
        rank: int | None = None,
        since: datetime | None = None,
        attempt: int | None = None,
    ) -> Iterator[LogLine]:
        """Yield all present log lines."""
        cursor, more = 0, True
        while more:
            page = self.logs(job, after=cursor, node=node, rank=rank, since=since, attempt=attempt)
            yield from page.lines
            cursor, more = page.cursor, page.more

    def follow(
        self,
        job: str,
        *,
        after: int = 0,
        node: int | None = None,
        rank: int | None = None,
        since: datetime | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Follower:
        """Iterate over log lines and changes as they arrive, until the job has ended. Server restarts do not interrupt it."""
        params = {"node": node, "rank": rank, "since": _seconds(since)}
        return Follower(self._http, self._job(job, "follow"), params, after=after, patience_s=patience_s)

    def shared(self, job: str) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Download the job as one HTML file: yields its size, and its bytes as they arrive."""
        return self._http.download(self._job(job, "share"))

    def _job(self, job: str, *parts: str) -> str:
        return self._path("jobs", segment(job), *parts)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
