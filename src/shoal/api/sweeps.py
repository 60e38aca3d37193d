"""Sweeps of a workspace and their trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.api.frames import Table
from shoal.api.jobs import Job

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.sweeps import SweepSummary, SweepView, TrialView


class Trial:
    """A trial of a sweep, made by `Sweep.trials`. `view` has all facts about it."""

    def __init__(self, client: Client, view: TrialView):
        self._client, self.view = client, view

    @property
    def params(self) -> dict[str, Any]:
        """Parameter → value."""
        return self.view.params

    @property
    def result(self) -> float | None:
        """Best value of the sweep's metric so far."""
        return self.view.result

    @property
    def job(self) -> Job | None:
        """Job of the trial; None if it has none."""
        return Job(self._client, self.view.job_id) if self.view.job_id else None

    def facts(self) -> dict[str, Any]:
        """Return its parameters and main facts as column → value.

        Example:
            >>> sweep.best.facts()
        """
        view = self.view
        facts = {"trial": view.number, "state": str(view.state), "result": view.result, "seconds": view.seconds}
        return {**facts, **view.params, "job": view.job}

    def __repr__(self) -> str:
        params = ", ".join(f"{name}={value}" for name, value in self.params.items())
        return f"Trial({self.view.number}: {params} → {self.result})"


class Sweep:
    """A sweep on the server, made by `Workspace.sweep` and `Workspace.sweep_over`."""

    def __init__(self, client: Client, sweep: str | SweepSummary):
        self._client = client
        self._view: SweepSummary = client.sweeps.get(sweep) if isinstance(sweep, str) else sweep

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self._view.name

    @property
    def view(self) -> SweepView:
        """All facts about the sweep at this moment."""
        from shoal.core.sweeps import SweepView

        if not isinstance(self._view, SweepView) or self._view.ended_at is None:
            self._view = self._client.sweeps.get(self._view.id)
        assert isinstance(self._view, SweepView)  # noqa: S101
        return self._view

    @property
    def status(self) -> str:
        """Present state: running, finished, stopped or failed."""
        return str(self.view.status)

    @property
    def best(self) -> Trial | None:
        """Best trial so far; None before the first result."""
        found = self.view.best
        return Trial(self._client, found) if found is not None else None

    def trials(self, *, by_result: bool = False) -> Table[Trial]:
        """Return all trials.

        Args:
            by_result: Best first, instead of by number.

        Returns:
            A list, which `frame()` makes a data frame with a column per parameter.

        Example:
            >>> space.sweep("lr").trials().frame().plot.scatter("lr", "result", logx=True)
        """
        order: Any = "result" if by_result else "number"
        return Table(Trial(self._client, one) for one in self._client.sweeps.all_trials(self._view.id, order=order))

    def wait(self, timeout_s: float | None = None) -> Sweep:
        """Wait until the sweep has ended; raise TimedOut after `timeout_s`.

        Args:
            timeout_s: Longest time to wait in seconds; None: without limit.

        Returns:
            The sweep itself.

        Example:
            >>> space.sweep("lr").wait().best.params
        """
        self._view = self._client.sweeps.wait(self._view.id, timeout_s=timeout_s)
        return self

    def stop(self) -> None:
        """Stop the sweep and all its trials.

        Example:
            >>> sweep.stop()
        """
        self._view = self._client.sweeps.stop(self._view.id)

    def facts(self) -> dict[str, Any]:
        """Return its main facts as column → value.

        Example:
            >>> sweep.facts()["best"]
        """
        view = self._view
        best = view.best.result if view.best else None
        return {
            "name": view.name,
            "status": str(view.status),
            "trials": view.trials,
            "metric": view.metric,
            "best": best,
        }

    def __repr__(self) -> str:
        return f"Sweep({self.name}, {self._view.status}, {self._view.trials} trials)"
