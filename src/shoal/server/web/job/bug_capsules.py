"""Data about a failed step for the job's page. Only the description in its bug capsule is read, which is JSON."""

from __future__ import annotations

import json
import shlex
from typing import Any

from shoal.core.artifacts import Manifest
from shoal.core.bugs import BugView
from shoal.core.jobs import JobView
from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.jobs import bug_capsules
from shoal.server.policy import Access
from shoal.server.web.files import previews
from shoal.server.web.format import compact

_ABOUT = "capsule.json"
_MOST_BYTES = 1 << 20
_MOST_LOCALS, _MOST_TENSORS = 60, 50


class Failure(View):
    """The newest failed step of a job."""

    bug: BugView
    replay: str
    """Command that replays the step."""
    traceback: str = ""
    variables: list[tuple[str, str]] = []
    """Local variables of the function that failed, as (name, value)."""
    batch: list[str] = []
    """Tensors of the batch, one line each."""
    not_finite: list[str] = []
    versions: list[tuple[str, str]] = []
    files: list[tuple[str, int]] = []
    others: list[BugView] = []
    """Earlier failed steps, newest first."""


def newest(ctx: Context, access: Access, job: JobView) -> Failure | None:
    if not job.bugs:
        return None
    *earlier, bug = job.bugs
    step = [] if not earlier else ["--step", str(bug.step)]
    replay = shlex.join(["shoal", "training", "replay", job.name, *step])
    found = Failure(bug=bug, replay=replay, others=earlier[::-1][:20])
    if bug.ready:
        _read(ctx, access, job, found)
    return found


def _read(ctx: Context, access: Access, job: JobView, found: Failure) -> None:
    """Fill in what the capsule says, ignoring whatever is invalid: a worker wrote it, so it is not trusted."""
    manifest = Manifest.model_validate_json(bug_capsules.manifest(ctx, access, job.id, found.bug.id))
    files = previews.Files(manifest, f"the capsule of step {found.bug.step}")
    found.files = [(f.path, f.size) for f in manifest.files]
    size = dict(found.files).get(_ABOUT, _MOST_BYTES + 1)
    if size > _MOST_BYTES:
        return
    _, pieces = previews.whole(ctx, files, _ABOUT)
    try:
        about = json.loads(b"".join(pieces))
    except (ValueError, RecursionError):
        return
    if not isinstance(about, dict):
        return
    error, variables, versions = (_mapping(about.get(key)) for key in ("error", "locals", "versions"))
    found.traceback = str(error.get("traceback") or "")[-100_000:]
    found.variables = [(str(k), compact(v)[:300]) for k, v in list(variables.items())[:_MOST_LOCALS]]
    found.versions = [(str(k), compact(v)[:60]) for k, v in versions.items()]
    found.batch = [_tensor(t) for t in _list(about.get("batch"))[:_MOST_TENSORS]]
    found.not_finite = [str(n)[:200] for n in _list(about.get("non_finite"))[:_MOST_TENSORS]]


def _tensor(told: Any) -> str:
    one = _mapping(told)
    if "shape" not in one:
        return compact(told)[:200]
    shape = " × ".join(str(n) for n in _list(one["shape"])) or "scalar"
    span = f", {one['min']:.4g} to {one['max']:.4g}" if _are_numbers(one.get("min"), one.get("max")) else ""
    bad = f", {one['non_finite']} not finite" if one.get("non_finite") else ""
    return f"{one.get('path', '')}: {shape} {one.get('dtype', '')}{span}{bad}"[:300]


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(v, int | float) for v in values)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
