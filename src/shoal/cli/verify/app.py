"""`shoal training verify-resume` and `shoal verify-resume`: check that a kill -9 and a resume do not change the results."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from shoal.cli.shared.output import out
from shoal.cli.shared.parse import parse_duration, parse_pairs
from shoal.cli.shared.session import connect
from shoal.core import start_seed
from shoal.core.errors import JobFailed, UsageError
from shoal.core.records import Kind

if TYPE_CHECKING:
    from shoal.cli.verify.report import Evidence, Plan
    from shoal.client import Client
    from shoal.core.jobs import JobSpec, JobView

VARIABLE = "SHOAL_VERIFY"


def verify_resume(job: str, /, *, steps: int = 10, more: int = 10, time_limit: str = "1h", keep: bool = False) -> int:
    """Check with two short copies of a job that it resumes exactly.

    One copy trains K+M steps. The other is killed (kill -9) after K steps,
    resumes from its checkpoint as after any failure, and trains M more. Then
    weights, optimizer, random generators and position in the data are compared
    bit by bit. Exits 0 if all are equal, 1 if not. Both copies start with the
    same random numbers, so the script needs no seed.

    For example:

      shoal training verify-resume hello
      shoal training verify-resume hello --steps 50 --more 20 --json

    Parameters
    ----------
    job
        Name or id of the job; it may have ended.
    steps
        Number of steps before the kill, K (default 10).
    more
        Number of steps after the kill, M (default 10).
    time_limit
        Maximum run time of each copy: 90s, 30m, 1h (default 1h).
    keep
        Keep both copies. They are always kept if something differs.
    """
    from shoal.cli.verify.report import Plan, conclude

    plan, limit_s = Plan(steps, more), parse_duration(time_limit, "--time-limit")
    with connect() as client, _scratch() as folder:
        copies = Copies(client, client.jobs.get(job), plan, limit_s, folder)
        whole, broken = copies.run("unbroken", "broken")
        certificate = conclude(plan, whole, broken, lambda: copies.run("repeated")[0])
        if certificate["bit_exact"] and not keep:
            for view in copies.made:
                client.jobs.delete(view.id)
    return _report(certificate)


def verify_script(
    *entry: str,
    nproc: Annotated[int, Parameter(name=("--nproc", "-n"))] = 1,
    steps: int = 10,
    more: int = 10,
    emulate_cuda: bool = False,
    data: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    env: Annotated[list[str] | None, Parameter(name=("--env", "-E"), consume_multiple=False)] = None,
) -> int:
    """Check on this machine, without a server, that a script resumes exactly.

    Works like `shoal training verify-resume`: one run trains K+M steps; the
    other trains K steps, is killed with kill -9, resumes and trains M steps.
    Then their checkpoints are compared.

    For example:

      shoal verify-resume train.py
      shoal verify-resume --nproc 2 --steps 20 train.py -- --lr 3e-4

    Parameters
    ----------
    entry
        The script, then `--` and its arguments.
    nproc
        Number of workers (default 1).
    steps
        Number of steps before the kill, K (default 10).
    more
        Number of steps after the kill, M (default 10).
    emulate_cuda
        Run code that asks for CUDA and nccl on the CPU.
    data
        Folder to provide at /input/NAME, as NAME=PATH or PATH (repeatable).
    env
        Environment variable, as NAME=VALUE (repeatable).
    """
    from shoal.cli.run.app import EMULATE_CUDA, data_folders
    from shoal.cli.verify.report import Plan, conclude

    if not entry:
        raise UsageError("No script given.", hint=f"{out.prog} verify-resume train.py")
    plan = Plan(steps, more)
    values = parse_pairs(env, "--env", "NAME=VALUE") | ({EMULATE_CUDA: "1"} if emulate_cuda else {})
    if nproc < 1:
        raise UsageError(f"--nproc {nproc}: a run needs at least one worker.")
    options: dict[str, Any] = {"nproc": nproc, "data": data_folders(data or [])}
    seed = start_seed.new()
    with _scratch() as folder:

        def run(name: str) -> Evidence:
            return _run_here(plan, list(entry), values | _start(name, seed), options, folder / name, kill=_dies(name))

        whole, broken = run("unbroken"), run("broken")
        return _report(conclude(plan, whole, broken, lambda: run("repeated")))


def _report(certificate: dict[str, Any]) -> int:
    from shoal.cli.verify.report import show

    out.show(certificate, lambda: show(certificate))
    return 0 if certificate["bit_exact"] else 1


@contextmanager
def _scratch() -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="shoal-verify-") as folder:
        yield Path(folder)


def _dies(name: str) -> bool:
    return name != "unbroken"


def _start(name: str, seed: str) -> dict[str, str]:
    """Return the variable with the random start of a copy.

    All copies start with the same random numbers. After its kill, "broken" gets different ones, as in a real restart;
    "repeated" gets the same ones again.
    """
    return {start_seed.VARIABLE: start_seed.new(every_attempt=name == "repeated", like=seed)}


class Copies:
    """Short copies of a job that run on its server."""

    def __init__(self, client: Client, job: JobView, plan: Plan, limit_s: float, folder: Path):
        self._client, self._job, self._plan, self._limit_s, self._folder = client, job, plan, limit_s, folder
        self._tag, self._seed = secrets.token_hex(2), start_seed.new()
        self.made: list[JobView] = []

    def run(self, *names: str) -> list[Evidence]:
        """Run these copies at the same time until they end, and collect their checkpoints, metrics and logs."""
        jobs = [self._client.jobs.create(self._spec(name)) for name in names]
        self.made += jobs
        listed = ", ".join(job.name for job in jobs)
        out.info(
            f"Running {len(jobs)} short {_copies(jobs)} of '{self._job.name}' ({self._plan.last} steps): {listed}."
        )
        _await(self._client, jobs)
        return [_collect(self._client, job, self._plan, self._folder / job.name) for job in jobs]

    def _spec(self, name: str) -> JobSpec:
        job, asked = self._job, self._plan.env_value(kill=_dies(name), captured=True)
        return job.spec.model_copy(
            update={
                "name": f"{job.name[:40]}-verify-{self._tag}-{name}",
                "min_nodes": job.nodes,
                "max_nodes": job.nodes,
                "env": job.spec.env | {VARIABLE: asked} | _start(name, self._seed),
                "max_restarts": 1 if _dies(name) else 0,
                "time_limit_s": max(1, round(self._limit_s)),
                "keep_last": None,
                "keep_best": None,
            }
        )


def _copies(jobs: list[JobView]) -> str:
    return "copy" if len(jobs) == 1 else "copies"


def _await(client: Client, jobs: list[JobView]) -> None:
    """Wait until all jobs have ended; stop them on ^C or any error."""
    try:
        for number, job in enumerate(jobs):
            jobs[number] = client.jobs.wait(job.id)
            out.dim(f"  {job.name} has ended: {jobs[number].status}")
    except BaseException:
        for job in jobs:
            client.jobs.stop(job.id)
        raise


def _collect(client: Client, job: JobView, plan: Plan, folder: Path) -> Evidence:
    from shoal.cli.verify.report import Evidence

    view = client.jobs.get(job.id)
    evidence = Evidence(job.name)
    evidence.read(line.text for line in client.jobs.lines(job.id))
    if view.status != "succeeded":
        evidence.failure = f"{view.status}: {view.reason}"
    saved = [c for c in client.checkpoints.list(job.id) if c.step == plan.last and not c.damaged]
    if saved:
        evidence.checkpoint = client.checkpoints.fetch(saved[-1].id, folder).path
    history = client.metrics.read(job.id)["metrics"]
    evidence.metrics = {name: {int(x): value for x, value in points} for name, points in history.items()}
    evidence.ledger = client.metrics.ledger(job.id)
    return evidence


def _run_here(
    plan: Plan, entry: list[str], env: dict[str, str], options: dict[str, Any], folder: Path, *, kill: bool
) -> Evidence:
    from shoal.cli.run.local import LocalRun
    from shoal.cli.run.run_dir import RunDir
    from shoal.cli.verify.report import Evidence, read_events

    out.info(f"{plan.steps} steps, kill -9, {plan.more} steps …" if kill else f"{plan.last} steps without a break …")
    run_dir = RunDir.create("verify", entry, options["nproc"], folder)
    values = env | {VARIABLE: plan.env_value(kill=kill)}
    silent = os.open(os.devnull, os.O_WRONLY)
    run = LocalRun(entry=entry, run_dir=run_dir, env=values, stdout=silent, stderr=silent, **options)
    try:
        ended = run.run()
        events = read_events((run_dir.logs / "rank-0.log").read_text("utf-8", "replace").splitlines())
        if ("killed", plan.steps) in events:
            run.resume_from = run_dir.newest_checkpoint()
            ended = run.run()
    finally:
        os.close(silent)
    if ended.stopped:
        raise JobFailed(str(ended.reason))
    log = (run_dir.logs / "rank-0.log").read_text("utf-8", "replace")
    evidence = Evidence("the broken run" if kill else "the unbroken run")
    evidence.read(log.splitlines())
    if ended.code:
        out.info(re.sub(r"^", "  ", "\n".join(log.splitlines()[-20:]), flags=re.MULTILINE))
        evidence.failure = ended.reason
    saved = run_dir.checkpoints / f"step-{plan.last:09d}"
    evidence.checkpoint = saved if saved.is_dir() else None
    _read_spool(run_dir.spool, evidence)
    return evidence


def _read_spool(folder: Path, evidence: Evidence) -> None:
    import json

    metrics: dict[str, dict[int, Any]] = {}
    for path in sorted(folder.glob("rank-*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # an incomplete line, cut off by the kill
                continue
            if record.get("k") in (Kind.DATA, Kind.SAMPLES):
                evidence.ledger.append(record)
            elif record.get("k") == Kind.STEP:
                for name, value in record["v"].items():
                    metrics.setdefault(name, {})[record["i"]] = value
    evidence.metrics = metrics
