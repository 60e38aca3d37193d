"""The command that does what a page does: one function for the new-job page and for a job's own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from shoal.core.durations import short_duration
from shoal.core.jobs import JobSpec

_USUAL_WORKSPACE = "default"
_ELSEWHERE = frozenset({"name", "entry", "source_id", "datasets", "min_nodes", "max_nodes", "env", "secrets"})
"""Fields that are told in their own way."""


def training_command(spec: JobSpec, *, workspace: str, source: Mapping[str, Any]) -> str:
    """`shoal training run …` with every setting that is not the usual one. `source` is where the code came from."""
    words = ["shoal", "training", "run", spec.name]
    if workspace != _USUAL_WORKSPACE:
        words += ["--workspace", workspace]
    words += _code(source)
    for reference in spec.datasets:
        words += ["--dataset", reference]
    if spec.max_nodes != 1:
        low, high = spec.min_nodes, spec.max_nodes
        words += ["--nodes", str(high) if low == high else f"{low}:{high}"]
    for name, field in JobSpec.model_fields.items():
        value = getattr(spec, name)
        if name not in _ELSEWHERE and value != field.get_default():
            for one in value if isinstance(value, list) else [value]:
                words += [option_of(name), short_duration(one) if name.endswith("_s") else str(one)]
    for name, value in spec.env.items():
        words += ["--env", f"{name}={value}"]
    for name, secret in spec.secrets.items():
        words += ["--secret", f"{name}={secret}"]
    return shlex.join([*words, "--", *spec.entry])


def where_to_run(source: Mapping[str, Any]) -> str:
    """What the command takes for granted: where it is typed, if that matters."""
    kind, path = source.get("kind"), source.get("path")
    if kind in ("archive", "file"):
        return f"Where {path or 'the code'} is."
    if kind == "folder":
        return f"In the folder {path}." if path else "In the folder of the code."
    return ""


def option_of(field: str) -> str:
    """What a field of a JobSpec is called on the command line: time_limit_s is --time-limit."""
    return "--" + field.removesuffix("_s").replace("_", "-")


def _code(source: Mapping[str, Any]) -> list[str]:
    """Nothing for a folder: the command is to be run in it."""
    kind = source.get("kind")
    if kind == "git" and source.get("url"):
        revision = source.get("commit") or source.get("revision")
        return ["--repository-url", str(source["url"]), *(["--repository-revision", str(revision)] if revision else [])]
    option = {"archive": "--zip", "file": "--file"}.get(str(kind))
    return [option, str(source["path"])] if option and source.get("path") else []
