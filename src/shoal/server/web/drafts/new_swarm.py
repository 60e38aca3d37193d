"""The new-swarm page: the code and arguments of a job, and the terms that all peers share."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from shoal.core.errors import InvalidSpec, ShoalError
from shoal.core.swarm import SwarmSpec
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.server.web import command
from shoal.server.web.drafts import job as drafts
from shoal.server.web.drafts import new_job
from shoal.server.web.drafts.job import Draft, in_step, to_spec
from shoal.server.web.drafts.new_job import Preview
from shoal.server.web.forms import Form, parse

_NUMBERS = ("target_batch_size", "local_steps", "outer_lr", "outer_momentum", "every_rounds", "keep_last", "seed")
_CHOICES = ("mode", "compression", "trust")
_OF_A_JOB = frozenset({"name", "entry", "source_id", "datasets", "env", "port"})
"""Fields that are not written as plain options."""
_OPTIONS = {"every_rounds": "--checkpoint-rounds", "every_s": "--checkpoint-every"}


class SwarmDraft(Draft):
    """Content of the new-swarm form."""

    target_batch_size: str = "256"
    mode: str = "local-steps"
    local_steps: str = ""
    compression: str = "int8"
    trust: str = "invited"
    public: bool = False
    outer_lr: str = ""
    outer_momentum: str = ""
    every_rounds: str = ""
    seed: str = ""


def from_form(form: Form) -> SwarmDraft:
    texts: dict[str, Any] = {name: form[name].strip() for name in (*_NUMBERS, *_CHOICES) if name in form}
    return SwarmDraft(**dict(drafts.from_form(form)) | texts, public="public" in form)


def to_swarm(draft: SwarmDraft, *, unfinished: bool = False) -> SwarmSpec:
    """Return the SwarmSpec of a draft; raise InvalidSpec for the first error. See `drafts.to_spec`."""
    if not unfinished and draft.source_id and draft.entry and not draft.name:
        raise InvalidSpec("Give the swarm a name.")
    job = to_spec(draft, unfinished=unfinished)
    if not draft.target_batch_size:
        raise InvalidSpec("Give the batch size: the samples of all peers together in one batch, such as 256.")
    numbers = {name: value for name in _NUMBERS if (value := getattr(draft, name))}
    return parse(
        SwarmSpec,
        name=job.name,
        entry=job.entry,
        source_id=job.source_id,
        datasets=job.datasets,
        env=job.env,
        public=draft.public,
        **{name: getattr(draft, name) for name in _CHOICES},
        **numbers,
    )


def form_data(ctx: Context, access: Access, draft: SwarmDraft) -> dict[str, Any]:
    """Return all data of the page for a draft."""
    found = new_job.code(ctx, access, draft.source_id) if draft.source_id else None
    return {"source": found, "error": None, **preview(ctx, access, draft), **new_job.choices(ctx, access)}


def preview(ctx: Context, access: Access, draft: SwarmDraft) -> dict[str, Any]:
    """Return the draft with consistent arguments and its command."""
    try:
        draft = in_step(draft)
        spec = to_swarm(draft, unfinished=True)
    except ShoalError as error:
        problem = f"{error.message} {error.hint}" if error.hint else error.message
        return {"draft": draft, "preview": Preview(command=None, problem=problem, fit=None, fit_text="")}
    source = new_job.origin(ctx, access, draft.source_id)
    shown = Preview(
        command=swarm_command(spec, workspace=access.workspace, source=source),
        problem=None,
        where=command.where_to_run(source),
        fit="now",
        fit_text="The server starts its coordinator at once; it trains when the first peer joins.",
    )
    return {"draft": draft, "preview": shown}


def swarm_command(spec: SwarmSpec, *, workspace: str, source: Mapping[str, Any]) -> str:
    """Return `shoal swarm create …` with every setting that differs from its default. `source` is the origin of the code."""
    words = ["shoal", "swarm", "create", spec.name, *command.where(workspace), *command.code_options(source)]
    usual = {name: field.get_default() for name, field in SwarmSpec.model_fields.items()}
    if spec.trust == "open":
        usual["aggregation"] = "robust"
    for name, value in ((name, getattr(spec, name)) for name in usual if name not in _OF_A_JOB):
        if value != usual[name]:
            words += [_OPTIONS.get(name, command.option_of(name)), *([] if value is True else [f"{value}"])]
    for reference in spec.datasets:
        words += ["--dataset", reference]
    for name, value in spec.env.items():
        words += ["--env", f"{name}={value}"]
    return shlex.join([*words, *command.entry_words(spec.entry, source)])
