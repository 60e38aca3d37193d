"""`shoal init`: write the project file of a folder, and with a template a training script."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal.cli.shared.output import out
from shoal.cli.shared.prompt import read_answer
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.cli.init.files import Project

Template = Literal["pytorch", "hf", "lightning", "nmp", "topspin"]


def init(
    folder: Path = Path(),
    /,
    *,
    name: str | None = None,
    template: Template | None = None,
    yes: bool = False,
    force: bool = False,
    schema: bool = False,
) -> None:
    """Write a project file, shoal.yaml, for the code in a folder.

    The file has the job's name, script and options, so that `shoal training
    run -f` is enough from then on. The script is found in the folder; on a
    terminal you are asked to confirm. With --template, a small training script
    is written too, ready to run.

    For example:

      shoal init
      shoal init --yes --name gpt
      shoal init new-project --template pytorch
      shoal init --schema > shoal.schema.json

    Parameters
    ----------
    folder
        Folder of the code (default: the current one). With --template it is created.
    name
        Name of the project's jobs (default: the folder's name).
    template
        Write a training script that uses this library: plain PyTorch, the Hugging Face Trainer,
        Lightning, NetMind's nmp, or TopSpin.
    yes
        Ask nothing: use the script that was found.
    force
        Replace files that exist.
    schema
        Print the JSON schema of shoal.yaml, for editors; write nothing.
    """
    from shoal.cli.init.files import Project, write_project

    if schema:
        from shoal.core.project_file import json_schema

        out.emit(json_schema())
        return
    project = Project.of(folder, name=name, template=template, force=force)
    if template is None:
        project.script = _choose(project.scripts, folder, asks=not yes and sys.stdin.isatty())
    written = write_project(project)
    told = {"files": [str(path) for path in written], "name": project.name, "run": project.script}
    out.show(told, lambda: _print_written(project, written))


def _choose(scripts: list[str], folder: Path, *, asks: bool) -> str:
    """Return the script to run: the likeliest, unless another one is typed."""
    if not scripts:
        raise UsageError(
            f"There is no Python script in {folder.absolute()}.", hint=f"{out.prog} init --template pytorch"
        )
    answer = scripts[0]
    if asks:
        if len(scripts) > 1:
            out.info(f"Scripts: {', '.join(scripts[:10])}{', …' if len(scripts) > 10 else ''}")
        answer = read_answer(f"Script to run [{scripts[0]}]: ") or scripts[0]
    if (folder / answer).is_file():
        return shlex.quote(answer)
    if answer.endswith(".py"):
        raise UsageError(f"There is no {answer} in {folder.absolute()}.", hint=f"{out.prog} init")
    return answer


def _print_written(project: Project, written: list[Path]) -> None:
    for path in written:
        out.line(str(path))
    out.info(f"Jobs of this folder are named '{project.name}' and run {project.script}.")
    if project.requirements:
        out.info(f"{project.requirements} is installed before they start.")
    change = "" if project.folder == Path() else f"cd {project.folder} && "
    out.dim(f"  {change}{out.prog} run                  on this machine, without a server")
    out.dim(f"  {change}{out.prog} training run -f      as a job")
