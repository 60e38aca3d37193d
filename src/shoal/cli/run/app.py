"""`shoal run`: run a script on this machine, in the foreground, without a server."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from shoal.cli.shared.format import duration
from shoal.cli.shared.output import out
from shoal.cli.shared.parse import parse_pairs
from shoal.cli.shared.session import session
from shoal.core.errors import UsageError
from shoal.core.names import check_name

if TYPE_CHECKING:
    from shoal.cli.run.local import Ended
    from shoal.cli.run.run_dir import RunDir

EMULATE_CUDA = "SHOAL_EMULATE_CUDA"
_MANY = Parameter(consume_multiple=False, allow_leading_hyphen=True)


def run(
    *entry: str,
    nproc: Annotated[int | None, Parameter(name=("--nproc", "-n"))] = None,
    name: str | None = None,
    folder: Annotated[Path | None, Parameter(name="--dir")] = None,
    resume: bool = False,
    emulate_cuda: bool = False,
    data: Annotated[list[str] | None, _MANY] = None,
    env: Annotated[list[str] | None, Parameter(name=("--env", "-E"), consume_multiple=False)] = None,
    profile: str | None = None,
) -> int:
    """Run a script on this machine in the environment of a job, without a server or queue.

    It runs in the current folder with the current Python; requirements.txt is
    not installed. SDK records, checkpoints and output are written to
    ./shoal-runs/NAME-TIME; `shoal sync` sends them to a server. Ctrl-C lets
    the script save and stop; a second Ctrl-C kills it. Script, arguments, name
    and env that are not given are taken from the folder's shoal.yaml.

    For example:

      shoal run train.py -- --lr 3e-4
      shoal run --nproc 2 train.py
      shoal run --data wikitext=./data/wiki train.py -- --data /input/wikitext
      shoal run --emulate-cuda train.py
      shoal run --resume
      shoal run --profile debug

    Parameters
    ----------
    entry
        The script, then `--` and its arguments. With --resume, the default is the same as before.
    nproc
        Number of workers, each with its own rank (default 1).
    name
        Name of the run (default: the script's name).
    folder
        Directory of the run (default: a new one in ./shoal-runs).
    resume
        Continue from the newest complete checkpoint of the newest run, or of the run at --dir.
    emulate_cuda
        Run code that asks for CUDA and nccl on the CPU, to debug it.
    data
        Folder to provide at /input/NAME, as NAME=PATH or PATH (repeatable).
    env
        Environment variable, as NAME=VALUE (repeatable).
    profile
        Profile of the folder's shoal.yaml to use.
    """
    import time

    from shoal.cli.run.local import LocalRun

    words, folder = _split_off_run_dir(list(entry), folder) if resume else (list(entry), folder)
    values = parse_pairs(env, "--env", "NAME=VALUE") | ({EMULATE_CUDA: "1"} if emulate_cuda else {})
    folders = data_folders(data or [])
    run_dir, words, nproc = _open(words, nproc, name, folder, resume=resume)
    checkpoint = run_dir.newest_checkpoint() if resume else None
    if resume:
        source = f"from {checkpoint.name}" if checkpoint else "from the start: it has no complete checkpoint"
        out.info(f"Resuming {run_dir.display_path} {source}.")
    started = time.monotonic()
    ended = LocalRun(
        entry=words,
        run_dir=run_dir,
        nproc=nproc,
        env=values,
        data=folders,
        resume_from=checkpoint,
        stdout=2 if out.json else 1,
    ).run()
    _report(run_dir, ended, time.monotonic() - started)
    return ended.code


def data_folders(items: list[str]) -> dict[str, Path]:
    """Parse `NAME=PATH` and `PATH` options; return a mapping of name → folder."""
    folders: dict[str, Path] = {}
    for item in items:
        name, equals, path = item.partition("=")
        folder = Path(path if equals else item)
        name = check_name(name if equals else folder.resolve().name, "dataset name")
        if not folder.is_dir():
            raise UsageError(f"--data {item}: {folder} is not a folder.", hint="Write it as: --data NAME=FOLDER")
        if name in folders:
            raise UsageError(f"--data {name} is given twice.")
        folders[name] = folder.resolve()
    return folders


def _split_off_run_dir(words: list[str], folder: Path | None) -> tuple[list[str], Path | None]:
    """Find the run directory of `--resume DIR` among the words before `--`; return the other words and the directory."""
    from shoal.cli.run.run_dir import FACTS

    own = len(words) - (session.after_dashes or 0)
    for at, word in enumerate(words[:own]):
        if folder is None and (Path(word) / FACTS).is_file():
            return words[:at] + words[at + 1 :], Path(word)
    return words, folder


def _open(
    words: list[str], nproc: int | None, name: str | None, folder: Path | None, *, resume: bool
) -> tuple[RunDir, list[str], int]:
    """Return the run's directory, the command line and the number of workers."""
    from shoal.cli.run.run_dir import RunDir

    if nproc is not None and nproc < 1:
        raise UsageError(f"--nproc {nproc}: a run needs at least one worker.")
    if resume:
        run_dir = RunDir.find(folder)
        facts = run_dir.facts
        words = words or [str(word) for word in facts.get("argv") or []]
        nproc = nproc or int(facts.get("world_size") or 1)
    if not words:
        raise UsageError("No script given.", hint=f"{out.prog} run train.py")
    if words[0].endswith(".py") and not Path(words[0]).is_file():
        near = difflib.get_close_matches(words[0], (path.name for path in Path.cwd().glob("*.py")), n=1)
        hint = f"{out.prog} run {near[0] if near else 'train.py'}"
        raise UsageError(f"There is no {words[0]} in {Path.cwd()}.", hint=hint)
    if not resume:
        name = check_name(name, "run name") if name else _name_of(words)
        run_dir = RunDir.create(name, words, nproc or 1, folder)
    return run_dir, words, nproc or 1


def _name_of(words: list[str]) -> str:
    script = next((w for w in words if w.endswith((".py", ".sh"))), words[0])
    return Path(script).stem or "run"


def _report(run_dir: RunDir, ended: Ended, seconds: float) -> None:
    newest, capsule = run_dir.newest_checkpoint(), run_dir.newest_capsule() if ended.code else None
    if out.json:
        out.emit(
            {
                "dir": str(run_dir.root),
                "exit_code": ended.code,
                "reason": ended.reason,
                "rank": ended.rank,
                "checkpoint": str(newest) if newest else None,
                "capsule": str(capsule) if capsule else None,
            }
        )
    if ended.code == 0:
        out.status("finished", "succeeded", f"after {duration(seconds)}")
    elif ended.stopped:
        out.status("stopped", "stopped", f"after {duration(seconds)}")
    else:
        out.error(f"Rank {ended.rank} failed: {ended.reason}" if ended.rank is not None else str(ended.reason))
        if hint := _import_hint(ended.reason or ""):
            out.info(f"hint: {hint}")
    out.dim(f"  run          {run_dir.display_path}")
    if capsule is not None:
        out.dim(f"  replay       {out.prog} replay {run_dir.display_path}")
    if newest is not None:
        out.dim(f"  checkpoint   {run_dir.display_path}/checkpoints/{newest.name}")
    if ended.code and newest is not None:
        out.dim(f"  resume       {out.prog} run --resume --dir {run_dir.display_path}")
    out.dim(f"  to a server  {out.prog} sync {run_dir.display_path}")


def _import_hint(reason: str) -> str | None:
    if not reason.startswith(("ModuleNotFoundError", "ImportError")):
        return None
    missing = reason.partition("'")[2].partition("'")[0].partition(".")[0] or "PACKAGE"
    what = "-r requirements.txt" if Path("requirements.txt").is_file() else missing
    return (
        f"`{out.prog} run` uses {sys.executable} as it is and installs nothing. "
        f"Install it there: {sys.executable} -m pip install {what}"
    )
