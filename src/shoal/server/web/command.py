"""Command lines that do the same as a page of the console: one for jobs (the new-job page and job pages), one for sweeps.
That of swarms is in `drafts.new_swarm`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.durations import stall_timeout
from shoal.core.jobs import JobSpec
from shoal.core.sweeps import SweepSpec
from shoal.tune.space import param_text

_USUAL_WORKSPACE = "default"
_ELSEWHERE = frozenset(
    {
        "name",
        "entry",
        "source_id",
        "datasets",
        "mounts",
        "min_nodes",
        "max_nodes",
        "env",
        "secrets",
        "gpu_memory_gb",
        "labels",
        "engine_options",
    }
)
_OF_A_SWEEP = frozenset({"name", "job", "space"})
"""Fields that are not written as plain options."""


def training_command(spec: JobSpec, *, workspace: str, source: Mapping[str, Any]) -> str:
    """Return `shoal training run …` with every setting that differs from its default. `source` is the origin of the code."""
    words = ["shoal", "training", "run", spec.name, *where(workspace), *_settings(spec, source)]
    return shlex.join([*words, *entry_words(spec.entry, source)])


def sweep_command(spec: SweepSpec, *, workspace: str, source: Mapping[str, Any]) -> str:
    """Return `shoal sweep run …` with every setting that differs from its default. `source` is the origin of the code."""
    words = ["shoal", "sweep", "run", spec.name, *where(workspace)]
    for name, axis in spec.space.items():
        words += ["--param", param_text(name, axis)]
    for name, field in SweepSpec.model_fields.items():
        value = getattr(spec, name)
        if name not in _OF_A_SWEEP and value != field.get_default():
            words += [option_of(name), str(value)]
    job = spec.job.model_copy(update={"batch": None, "budget": None})  # both belong to the sweep
    return shlex.join([*words, *_settings(job, source), *entry_words(job.entry, source)])


def where_to_run(source: Mapping[str, Any]) -> str:
    """Return a sentence that says in which folder the command must be run; empty if that does not matter."""
    kind, path = source.get("kind"), source.get("path")
    if kind != "notebook" and "notebook" in source:
        return f"Run it in the folder of {path or source.get('url')}, unpacked or cloned."
    if kind in ("archive", "file") or (kind == "notebook" and path):
        return f"Run it in the folder that contains {path or 'the code'}."
    if kind == "folder":
        return f"Run it in the folder {path}." if path else "Run it in the folder of the code."
    return ""


def option_of(field: str) -> str:
    """Return the command-line option of a JobSpec field: `--time-limit` for `time_limit_s`."""
    return "--" + field.removesuffix("_s").replace("_", "-")


def where(workspace: str) -> list[str]:
    """Return the option for a workspace; none for the default one."""
    return [] if workspace == _USUAL_WORKSPACE else ["--workspace", workspace]


def _settings(spec: JobSpec, source: Mapping[str, Any]) -> list[str]:
    words = code_options(source)
    for reference in spec.datasets:
        words += ["--dataset", reference]
    for mount in spec.mounts:
        words += ["--mount", mount]
    if spec.max_nodes != 1:
        low, high = spec.min_nodes, spec.max_nodes
        words += ["--nodes", str(high) if low == high else f"{low}:{high}"]
    for name, field in JobSpec.model_fields.items():
        value = getattr(spec, name)
        if name not in _ELSEWHERE and value != field.get_default():
            if value is True:
                words.append(option_of(name))
                continue
            for one in value if isinstance(value, list) else [value]:
                words += [option_of(name), stall_timeout(one) if name.endswith("_s") else str(one)]
    if spec.gpu_memory_gb:
        words += ["--gpu-memory", f"{spec.gpu_memory_gb:g}G"]
    for name, value in spec.labels.items():
        words += ["--label", f"{name}={value}"]
    for name, value in spec.engine_options.items():
        words += ["--engine-option", f"{name}={value}"]
    for name, value in spec.env.items():
        words += ["--env", f"{name}={value}"]
    for name, secret in spec.secrets.items():
        words += ["--secret", f"{name}={secret}"]
    return words


def entry_words(entry: Sequence[str], source: Mapping[str, Any]) -> list[str]:
    """Return `--` and the words after it. For a notebook only the arguments: its script is generated again."""
    words = entry[1:] if _is_notebook(source) else entry
    return ["--", *words] if words else []


def _is_notebook(source: Mapping[str, Any]) -> bool:
    return source.get("kind") == "notebook" or "notebook" in source


def code_options(source: Mapping[str, Any]) -> list[str]:
    """Return the options that select the code; none for a folder, because the command is run in it."""
    kind = source.get("kind")
    if kind == "git" and source.get("url"):
        revision = source.get("commit") or source.get("revision")
        return ["--repository-url", str(source["url"]), *(["--repository-revision", str(revision)] if revision else [])]
    if _is_notebook(source):
        return _notebook(source)
    option = {"archive": "--zip", "file": "--file"}.get(str(kind))
    return [option, str(source["path"])] if option and source.get("path") else []


def _notebook(source: Mapping[str, Any]) -> list[str]:
    """Return the options for a notebook. One that was part of a folder is converted together with that folder."""
    inside = source.get("kind") != "notebook"
    where = source.get("notebook") if inside else source.get("url") or source.get("path")
    folder, cells = "." if inside else source.get("folder"), source.get("entry_cell")
    words = ["--notebook", str(where), *(["--dir", str(folder)] if folder else [])]
    return [*words, *(["--entry-cell", str(cells)] if cells else []), "--as-is"]
