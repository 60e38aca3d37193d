"""Quotas for models of GPUs: how many of them each workspace may hold at once. Pure.

A quota limits where a job may run, not whether: a workspace that holds all its H100s may still use its T4s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shoal.core.gpu_models import is_model
from shoal.server.scheduler.kinds import Choice, Kinds
from shoal.server.scheduler.model import QueuedJob, RunningJob, Share

Key = tuple[str, str]
"""Workspace, and the model as its quota names it."""


class ModelQuotas:
    """Slots of each model that workspaces may still get."""

    def __init__(self, shares: Mapping[str, Share], running: Iterable[RunningJob], kinds: Kinds):
        self._kinds = kinds
        self.of = {(w, model): quota for w, share in shares.items() for model, quota in share.models.items()}
        self._left = dict(self.of)
        self._limited = {workspace for workspace, _ in self.of}
        for job in running if self.of else ():
            for machine, count in job.slots.items():
                self._use(job.workspace, machine, count)

    def within(self, job: QueuedJob, choice: Choice) -> tuple[Choice, int]:
        """Return the kinds a job may use now, and the most nodes it may have; no kinds if its quotas are used up."""
        if job.workspace not in self._limited:
            return choice, job.max_nodes
        left = {kind: self._left_of(job.workspace, kind) for kind in choice.kinds}
        groups = tuple(
            tuple(kind for kind in group if (most := left[kind]) is None or most >= job.min_slots)
            for group in choice.groups
        )
        kinds = [kind for group in groups for kind in group]
        most = min((n // job.accels for kind in kinds if (n := left[kind]) is not None), default=job.max_nodes)
        found = Choice(tuple(filter(None, groups)), frozenset(kinds), kinds[0] if len(kinds) == 1 else None)
        return found, min(job.max_nodes, most)

    def reserve(self, job: QueuedJob, nodes: Mapping[str, int]) -> None:
        if job.workspace in self._limited:
            for machine, number in nodes.items():
                self._use(job.workspace, machine, number * job.accels)

    def text(self, job: QueuedJob, choice: Choice) -> str:
        """Return which quotas keep a job from some of these kinds, as a reason why it waits."""
        models = [self._kinds.model_of(kind) for kind in sorted(choice.kinds)]
        said = [
            f"{quota} {name} at once, and holds {quota - self._left[workspace, name]} now"
            for (workspace, name), quota in sorted(self.of.items())
            if workspace == job.workspace
            and self._left[workspace, name] < job.min_slots
            and any(model and is_model(model, name) for model in models)
        ]
        return f"its workspace may hold {'; '.join(said)}"

    def _left_of(self, workspace: str, kind: str) -> int | None:
        """Return the slots of a kind that a workspace may still get; None without a quota for it."""
        model = self._kinds.model_of(kind)
        found = [n for (w, name), n in self._left.items() if w == workspace and model and is_model(model, name)]
        return min(found, default=None)

    def _use(self, workspace: str, machine: str, count: int) -> None:
        model = self._kinds.model_of(self._kinds.of.get(machine, ""))
        for key in self._left if model else ():
            if key[0] == workspace and is_model(model, key[1]):
                self._left[key] -= count
