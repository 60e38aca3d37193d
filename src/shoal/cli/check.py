"""`shoal check`: find mistakes in training code without running it."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.output import out
from shoal.cli.shared.parse import parse_nodes
from shoal.cli.shared.session import session
from shoal.core.errors import EntryNotFound, UsageError
from shoal.core.names import did_you_mean

if TYPE_CHECKING:
    from shoal.check.job_facts import JobFacts
    from shoal.check.source import Source
    from shoal.core.checks import CodeCheckView


def check(
    path: Path,
    /,
    *arguments: str,
    nodes: Annotated[str, Parameter(name=("--nodes", "-n"))] = "1",
    accels: Annotated[int, Parameter(name=("--accels", "-a"))] = 1,
    dataset: Annotated[list[str] | None, Parameter(name=("--dataset", "-D"), consume_multiple=False)] = None,
    folder: Annotated[Path | None, Parameter(name="--dir")] = None,
    strict: bool = False,
) -> int:
    """Find mistakes in training code that would make a job fail or train wrongly.

    The code is read, never run or imported: the script and the modules of its
    source that it imports. Only certain problems are reported.
    `# shoal: ignore[RULE]` at the end of a line disables a rule for that line.

    Exits 1 on errors (with --strict also on warnings), 0 otherwise.

    For example:

      shoal check train.py
      shoal check train.py --nodes 2 --accels 4 -- --lr 3e-4
      shoal check . --strict --json
      shoal check job.json

    Parameters
    ----------
    path
        A script, a folder (its train.py or main.py, or all of its scripts), or a job's spec as JSON.
    arguments
        Arguments of the script, after `--`.
    nodes
        Number of nodes, or MIN:MAX, as for `training run` (default 1).
    accels
        Workers per node, as for `training run` (default 1).
    dataset
        Dataset of the job (repeatable); reads of other paths below /input are reported.
    folder
        Root of the source (default: the current folder, if the script is in it).
    strict
        Treat warnings as errors.
    """
    from shoal.check.runner import check as look
    from shoal.cli.shared.findings import print_findings

    if path.suffix == ".json":
        source, entry, asked = _from_spec(path, folder)
    else:
        given = arguments if session.after_dashes is not None else None
        if arguments and given is None:
            raise UsageError(
                f"Unexpected argument {arguments[0]!r}. Script arguments go after `--`.",
                hint=f"{out.prog} check {path} -- {' '.join(arguments)}",
            )
        source, entry = _source(path, folder)
        asked = _job_facts(nodes, accels, given, dataset)
    view = look(source, entry, asked)
    out.show(view, lambda: print_findings(view, source))
    return _exit_code(view, strict=strict)


def _job_facts(nodes: str, accels: int, given: tuple[str, ...] | None, dataset: list[str] | None) -> JobFacts:
    from shoal.check.job_facts import JobFacts

    if accels < 1:
        raise UsageError(f"--accels {accels}: a node needs at least one slot.")
    return JobFacts(
        nodes=parse_nodes(nodes)[1],
        accels=accels,
        args=given,
        datasets=None if dataset is None else frozenset(name.partition("@")[0] for name in dataset),
    )


def _source(path: Path, folder: Path | None) -> tuple[Source, str | None]:
    """Return the source as a job would get it, and the script in it (None for a folder)."""
    from shoal.check.source import Source
    from shoal.store.ignore import scan

    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in Path.cwd().glob("*.py")]) if Path.cwd().is_dir() else ""
        raise EntryNotFound(f"There is no {path}.{near}", hint=f"{out.prog} check train.py")
    if path.is_dir():
        return Source(path, [f.path for f in scan(path, follow_out=True).files]), None
    if path.suffix == ".ipynb":
        raise UsageError(f"{path} is a notebook.", hint=f"{out.prog} notebook convert {path}")
    if path.suffix != ".py":
        raise UsageError(f"{path} is not Python.", hint=f"{out.prog} check train.py")
    root = folder or (Path.cwd() if path.resolve().is_relative_to(Path.cwd()) else path.parent)
    try:
        entry = path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise UsageError(f"{path} is not in {root}.", hint=f"{out.prog} check {path} --dir {path.parent}") from None
    paths = [f.path for f in scan(root, follow_out=True).files]
    return Source(root, [*paths, entry]), posixpath.normpath(entry)


def _from_spec(path: Path, folder: Path | None) -> tuple[Source, str | None, JobFacts]:
    """Read a JobSpec, or the output of `training inspect --json`; the code is in the file's folder unless --dir is given."""
    from shoal.check.job_facts import facts_of
    from shoal.check.source import Source
    from shoal.cli.shared.spec_file import read_spec
    from shoal.store.ignore import scan

    spec = read_spec(path)
    root = folder or path.parent
    source = Source(root, [f.path for f in scan(root, follow_out=True).files])
    entry, asked = facts_of(spec, spec.entry)
    if entry is None or entry not in source.paths:
        raise EntryNotFound(
            f"There is no {entry or spec.entry[0]} in {root}.", hint=f"{out.prog} check {path} --dir FOLDER"
        )
    return source, entry, asked


def _exit_code(view: CodeCheckView, *, strict: bool) -> int:
    from shoal.core.checks import Severity

    bad = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
    return int(any(finding.severity in bad for finding in view.findings))
