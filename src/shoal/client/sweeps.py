"""Sweeps: the same job many times with different parameter values."""

from __future__ import annotations

import time
from collections.abc import Iterator

from shoal.client._http import parse, segment
from shoal.client._noun import WorkspaceNoun, wait_until
from shoal.client.waiting import Clock
from shoal.core.sweeps import SweepSpec, SweepSummary, SweepView, TrialOrder, TrialView

_PAGE = 1000
Trials = list[TrialView]


class Sweeps(WorkspaceNoun):
    """Sweeps of a workspace. Each is given by its name or id."""

    def create(self, spec: SweepSpec) -> SweepView:
        return self._http.call(SweepView, "POST", self._path("sweeps"), spec)

    def list(self, *, limit: int | None = None) -> list[SweepSummary]:
        """List sweeps, newest first."""
        return self._http.fetch(list[SweepSummary], self._path("sweeps"), limit=limit)

    def get(self, sweep: str) -> SweepView:
        return self._http.fetch(SweepView, self._sweep(sweep))

    def trials(
        self, sweep: str, *, order: TrialOrder = "number", limit: int | None = None, after: int | None = None
    ) -> Trials:
        """Return one page of trials. Pass the number of its last trial as `after` to get the next page."""
        path = self._sweep(sweep, "trials")
        return self._http.fetch(Trials, path, order=order, limit=limit, after=after)

    def all_trials(self, sweep: str, *, order: TrialOrder = "number") -> Iterator[TrialView]:
        """Yield all trials."""
        after: int | None = None
        while page := self.trials(sweep, order=order, limit=_PAGE, after=after):
            yield from page
            after = page[-1].number

    def wait(self, sweep: str, *, timeout_s: float | None = None, clock: Clock = time.monotonic) -> SweepView:
        """Wait until the sweep has ended, and return it; raise TimedOut after `timeout_s`."""
        return wait_until(
            self._http,
            lambda: self.get(sweep),
            lambda view: view.ended_at is not None,
            what="Sweep",
            timeout_s=timeout_s,
            clock=clock,
        )

    def stop(self, sweep: str) -> SweepView:
        """Stop the sweep and all its trials. Nothing changes if it has ended or is already stopping."""
        return self._http.call(SweepView, "POST", self._sweep(sweep, "stop"), repeatable=True)

    def rerun(self, sweep: str, *, failed: bool = False) -> SweepView:
        """Continue a sweep where it stopped. `failed`: run its failed trials again, too."""
        params = {"failed": str(failed).lower()}
        return parse(SweepView, self._http.send("POST", self._sweep(sweep, "rerun"), params=params))

    def delete(self, sweep: str, *, jobs: bool = False) -> None:
        """Delete a sweep that has ended. Its jobs are kept unless `jobs`."""
        self._http.send("DELETE", self._sweep(sweep), params={"jobs": str(jobs).lower()})

    def _sweep(self, sweep: str, *parts: str) -> str:
        return self._path("sweeps", segment(sweep), *parts)
