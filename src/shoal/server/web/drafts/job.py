"""Draft of a job: the content of the new-job form as typed, until it becomes a JobSpec."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from shoal.core.durations import parse_duration, parse_stall_timeout, short_duration, stall_timeout
from shoal.core.errors import InvalidSpec, UsageError
from shoal.core.gpu_models import parse_memory
from shoal.core.jobs import JobSpec, JobView
from shoal.core.schema import View
from shoal.server.web.drafts.arguments import Kind, Row, join_words, split_line, to_rows, to_words
from shoal.server.web.forms import Form, parse

_NUMBERS = ("min_nodes", "max_nodes", "accels", "max_restarts", "priority", "keep_last")
_TEXTS = ("name", "source_id", "entry", "checkpoint", "time_limit", "stall_timeout", "on_stall", "keep_best", "launcher", "device", "gpu", "gpu_memory", "labels", "git_url", "git_revision", "notebook_url", "expected", "batch", "budget",
          "memory", "cpus", "disk", "shm", "grace", "engine_options", "mounts", "after", *_NUMBERS)  # fmt: skip

_STALL = "Stall timeout"
_OF_A_TRIAL = frozenset({"SHOAL_SWEEP", "SHOAL_TRIAL"})


class Pair(View):
    name: str
    value: str


class Draft(View):
    """Content of the new-job form."""

    name: str = ""
    source_id: str = ""
    entry: str = ""
    code: Literal["upload", "git", "notebook"] = "upload"
    """Selected way to provide the code."""
    git_url: str = ""
    git_revision: str = ""
    notebook_url: str = ""
    rows: list[Row] = []
    line: str = ""
    edited: Literal["rows", "line"] = "line"
    """The one of `rows` and `line` that was edited last, and therefore counts."""
    datasets: list[str] = []
    """Datasets as NAME or NAME@VERSION."""
    mounts: str = ""
    """Buckets and folders as FROM:/PATH, quoted as in a shell."""
    after: str = ""
    """Jobs to start after as [NAME=]JOB[:ended], separated by spaces or commas."""
    checkpoint: str = ""
    min_nodes: str = "1"
    max_nodes: str = ""
    grow: bool = False
    accels: str = "1"
    env: list[Pair] = []
    secrets: list[Pair] = []
    time_limit: str = ""
    stall_timeout: str = ""
    on_stall: str = "restart"
    max_restarts: str = "3"
    priority: str = "0"
    keep_last: str = ""
    keep_best: str = ""
    launcher: str = "direct"
    allow_cpu: bool = False
    allow_torch_change: bool = False
    grace: str = ""
    one_device_per_worker: bool = False
    mixed_models: bool = False
    engine_options: str = ""
    """Options of the cluster as name=value, separated by spaces."""
    device: str = "auto"
    gpu: str = ""
    gpu_memory: str = ""
    labels: str = ""
    """Labels as key=value, separated by spaces or commas."""
    expected: str = ""
    budget: str = ""
    batch: str = ""
    memory: str = ""
    cpus: str = ""
    disk: str = ""
    shm: str = ""
    prefer: list[str] = []
    exclude: list[str] = []
    """Names of machines, like `prefer`."""

    def words(self) -> list[str]:
        return split_line(self.line) if self.edited == "line" else to_words(self.rows)

    def version_of(self, dataset: str) -> str | None:
        """Return the selected version of a dataset: '' for the newest, None if the dataset is not selected."""
        found = (ref.partition("@") for ref in self.datasets)
        return next((version for name, _, version in found if name == dataset), None)


AnyDraft = TypeVar("AnyDraft", bound=Draft)


def from_form(form: Form) -> Draft:
    texts = {name: form[name].strip() for name in _TEXTS if name in form}
    kinds = [kind if kind in set(Kind) else Kind.TEXT for kind in form.all("arg_kind")]
    triples = zip(form.all("arg_name"), form.all("arg_value"), kinds, strict=False)
    return Draft(
        **texts,
        code="git" if form.get("code") == "git" else "notebook" if form.get("code") == "notebook" else "upload",
        rows=[Row(name=name, value=value, kind=Kind(kind)) for name, value, kind in triples if name or value],
        line=form.get("line", "").strip(),
        edited="rows" if form.get("edited") == "rows" else "line",
        datasets=[_reference(name, form.get(f"version.{name}", "")) for name in form.all("dataset")],
        env=_pairs(form, "env_name", "env_value"),
        secrets=_pairs(form, "secret_env", "secret_name"),
        grow="grow" in form,
        allow_cpu="allow_cpu" in form,
        allow_torch_change="allow_torch_change" in form,
        one_device_per_worker="one_device_per_worker" in form,
        mixed_models="mixed_models" in form,
        prefer=form.all("prefer"),
        exclude=form.all("exclude"),
    )


def from_job(job: JobView) -> Draft:
    """Return a draft with everything of an earlier job except its name."""
    return from_spec(job.spec)


def from_spec(spec: JobSpec) -> Draft:
    spec = alone(spec)
    return Draft(
        source_id=spec.source_id,
        entry=spec.entry[0],
        rows=to_rows(spec.entry[1:]),
        line=join_words(spec.entry[1:]),
        datasets=spec.datasets,
        mounts=join_words(spec.mounts),
        after=" ".join(map(str, spec.after)),
        checkpoint=spec.checkpoint or "",
        min_nodes=str(spec.min_nodes),
        max_nodes="" if spec.max_nodes == spec.min_nodes else str(spec.max_nodes),
        grow=spec.grow,
        accels=str(spec.accels),
        env=[Pair(name=k, value=v) for k, v in spec.env.items()],
        secrets=[Pair(name=k, value=v) for k, v in spec.secrets.items()],
        time_limit=short_duration(spec.time_limit_s) if spec.time_limit_s else "",
        on_stall=spec.on_stall,
        stall_timeout="" if spec.stall_timeout_s is None else stall_timeout(spec.stall_timeout_s),
        max_restarts=str(spec.max_restarts),
        priority=str(spec.priority),
        keep_last=str(spec.keep_last or ""),
        keep_best=spec.keep_best or "",
        launcher=spec.launcher,
        allow_cpu=spec.allow_cpu,
        allow_torch_change=spec.allow_torch_change,
        grace="" if spec.grace_s is None else short_duration(spec.grace_s),
        one_device_per_worker=spec.one_device_per_worker,
        mixed_models=spec.mixed_models,
        engine_options=" ".join(f"{key}={value}" for key, value in spec.engine_options.items()),
        device=spec.device,
        gpu=spec.gpu or "",
        gpu_memory=f"{spec.gpu_memory_gb:g}G" if spec.gpu_memory_gb else "",
        labels=" ".join(f"{key}={value}" for key, value in spec.labels.items()),
        expected=short_duration(spec.expected_s) if spec.expected_s else "",
        budget=spec.budget or "",
        batch=spec.batch or "",
        memory=spec.memory or "",
        cpus=f"{spec.cpus:g}" if spec.cpus else "",
        disk=spec.disk or "",
        shm=spec.shm or "",
        prefer=spec.prefer,
        exclude=spec.exclude,
    )


def alone(spec: JobSpec) -> JobSpec:
    """Return the specification of a trial's job without its link to the sweep; its parameter values stay."""
    if not spec.env.keys() & _OF_A_TRIAL:
        return spec
    env = {name: value for name, value in spec.env.items() if name not in _OF_A_TRIAL}
    return spec.model_copy(update={"env": env, "batch": None})


def in_step(draft: AnyDraft) -> AnyDraft:
    """Return the draft with `rows` and `line` in agreement: the one that was not edited is updated."""
    words = draft.words()
    if draft.edited == "rows":
        return draft.model_copy(update={"line": join_words(words)})
    return draft.model_copy(update={"rows": to_rows(words)})


def to_spec(draft: Draft, *, unfinished: bool = False) -> JobSpec:
    """Return the JobSpec of a draft; raise InvalidSpec for the first error. `unfinished` allows name, code and script to
    be missing."""
    if unfinished:
        draft = draft.model_copy(update={"name": draft.name or "NAME", "entry": draft.entry or "train.py"})
    elif not draft.source_id:
        raise InvalidSpec("Provide the code first: drop a file or an archive, or fetch a repository.")
    elif not draft.entry:
        raise InvalidSpec("Choose the script to run.")
    elif draft.entry.endswith(".ipynb"):
        raise InvalidSpec(f"{draft.entry} is a notebook: choose it again to convert it to a script.")
    elif not draft.name:
        raise InvalidSpec("Give the job a name.")
    values: dict[str, Any] = {name: number for name in _NUMBERS if (number := getattr(draft, name))}
    values.setdefault("max_nodes", values.get("min_nodes", "1"))
    env, secrets = _mapping(draft.env, "Environment"), _mapping(draft.secrets, "Secrets")
    for both in env.keys() & secrets.keys():
        raise InvalidSpec(f"{both} is set both as a variable and from a secret.")
    return parse(
        JobSpec,
        **values,
        name=draft.name,
        source_id=draft.source_id,
        entry=[draft.entry, *draft.words()],
        datasets=draft.datasets,
        mounts=split_line(draft.mounts, "Buckets and folders"),
        after=draft.after.replace(",", " ").split(),
        checkpoint=draft.checkpoint or None,
        grow=draft.grow,
        env=env,
        secrets=secrets,
        time_limit_s=_seconds(draft.time_limit, "Time limit"),
        stall_timeout_s=_seconds(draft.stall_timeout, _STALL),
        on_stall=draft.on_stall,
        expected_s=_seconds(draft.expected, "Expected time"),
        budget=draft.budget or None,
        batch=draft.batch or None,
        memory=draft.memory or None,
        cpus=draft.cpus or None,
        disk=draft.disk or None,
        shm=draft.shm or None,
        prefer=draft.prefer,
        exclude=draft.exclude,
        keep_best=draft.keep_best or None,
        launcher=draft.launcher,
        allow_cpu=draft.allow_cpu,
        allow_torch_change=draft.allow_torch_change,
        grace_s=_seconds(draft.grace, "Grace period"),
        one_device_per_worker=draft.one_device_per_worker,
        mixed_models=draft.mixed_models,
        engine_options=_options(draft.engine_options, "Options of the cluster"),
        device=draft.device,
        gpu=draft.gpu or None,
        gpu_memory_gb=_gigabytes(draft.gpu_memory),
        labels=_options(draft.labels.replace(",", " "), "Labels"),
    )


def _seconds(text: str, label: str) -> int | None:
    if not text:
        return None
    try:
        return parse_stall_timeout(text, label) if label == _STALL else max(1, round(parse_duration(text, label)))
    except UsageError as error:
        raise InvalidSpec(error.message, hint=error.hint) from None


def _gigabytes(text: str) -> float | None:
    try:
        return parse_memory(text) if text else None
    except UsageError:
        raise InvalidSpec(f"GPU memory: {text!r} is not a size such as 40G.") from None


def _options(text: str, where: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in text.split()]
    if wrong := next((key for key, equals, _ in pairs if not equals), None):
        raise InvalidSpec(f"{where}: {wrong!r} is not of the form key=value.")
    return {key: value for key, _, value in pairs}


def _mapping(pairs: list[Pair], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name = pair.name.strip()
        if not name:
            raise InvalidSpec(f"{where}: a row has no variable name.")
        if name in found:
            raise InvalidSpec(f"{where}: {name} is given twice.")
        found[name] = pair.value
    return found


def _pairs(form: Form, names: str, values: str) -> list[Pair]:
    both = zip(form.all(names), form.all(values), strict=False)
    return [Pair(name=name, value=value) for name, value in both if name.strip() or value]


def _reference(name: str, version: str) -> str:
    return f"{name}@{version}" if version else name
