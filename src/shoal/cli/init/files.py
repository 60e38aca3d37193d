"""Files that `shoal init` writes, and the scripts it finds in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shoal.cli.shared.atomic_file import refuse_existing, whole_file
from shoal.core.errors import UsageError
from shoal.core.names import check_name
from shoal.core.project_file import FILE_NAME, usable_name

SCRIPT, REQUIREMENTS = "train.py", "requirements.txt"
NEEDS = {"hf": "transformers\naccelerate\n", "lightning": "lightning\n"}
"""Template → its requirements.txt. The others need nothing but Shoal."""
TEMPLATES = Path(__file__).parent / "templates"
MOST_FILES = 2_000
_NEVER = re.compile(r"(test_.*|.*_test|conftest|setup|__init__)\.py")
_LIBRARIES = re.compile(
    r"^\s*(?:import|from)\s+(torch|lightning|pytorch_lightning|transformers|accelerate|shoal|topspin|NetmindMixins)\b",
    re.MULTILINE,
)
_MAIN = re.compile(r"^if __name__ ==", re.MULTILINE)
_NAMES = ("train", "main", "run", "finetune", "pretrain")
_FOLDERS = ("tests", "test", "docs", "build", "dist", "node_modules", "site-packages", "shoal-runs", "wandb", "mlruns")


@dataclass(slots=True)
class Project:
    """A folder of code, and what its project file says."""

    folder: Path
    name: str
    template: str | None = None
    force: bool = False
    script: str = SCRIPT
    scripts: list[str] = field(default_factory=list)
    """Scripts of the folder, likeliest first."""

    @classmethod
    def of(cls, folder: Path, *, name: str | None, template: str | None, force: bool) -> Project:
        """Return the project of a folder; raise if files that would be written exist, or there is no such folder."""
        if not folder.is_dir() and (template is None or folder.exists()):
            raise UsageError(f"{folder} is not a folder.", hint="Create one: shoal init FOLDER --template pytorch")
        made = cls(folder, check_name(name, "name") if name else usable_name(folder.absolute().name), template, force)
        for path in made.paths():
            refuse_existing(path, "FOLDER", force=force)
        made.scripts = find_scripts(folder)
        return made

    def paths(self) -> list[Path]:
        """Return the paths of the files to write."""
        names = [FILE_NAME, *([SCRIPT] if self.template else [])]
        if self.template in NEEDS and not self.requirements:
            names.append(REQUIREMENTS)
        return [self.folder / name for name in names]

    @property
    def requirements(self) -> str | None:
        """Name of the folder's file of requirements, if it has one."""
        return REQUIREMENTS if (self.folder / REQUIREMENTS).is_file() else None


def write_project(project: Project) -> list[Path]:
    """Write the project file, and with a template its script and requirements; return the paths."""
    texts = {FILE_NAME: project_text(project)}
    if project.template:
        texts[SCRIPT] = (TEMPLATES / f"{project.template}.py.txt").read_text(encoding="utf-8")
        texts[REQUIREMENTS] = NEEDS.get(project.template, "")
    project.folder.mkdir(parents=True, exist_ok=True)
    paths = project.paths()
    for path in paths:
        with whole_file(path) as file:
            file.write(texts[path.name].encode())
    return paths


def find_scripts(folder: Path) -> list[str]:
    """Return the scripts of a folder that could train, likeliest first: by name, by what they import, by depth."""
    found = []
    for path in _python_files(folder):
        text = _beginning(folder / path)
        trains, is_main = bool(_LIBRARIES.search(text)), bool(_MAIN.search(text))
        stem = Path(path).stem.lower()
        by_name = next((at for at, name in enumerate(_NAMES) if name in stem), len(_NAMES))
        if by_name < len(_NAMES) or is_main or (trains and "/" not in path):
            exact = stem == _NAMES[0]
            found.append(((not exact, not (trains or is_main), by_name, path.count("/"), not is_main, path), path))
    if not found:
        return [path for path in _python_files(folder) if "/" not in path]
    return [path for _, path in sorted(found)]


def project_text(project: Project) -> str:
    """Return the text of a project file. Its commented lines are examples that are valid without the `# `."""
    args = "args: {steps: 500, lr: 3e-3}" if project.template else "# args: {lr: 3e-4}"
    debug = "args: {steps: 20}" if project.template else "# args: {lr: 1e-3}"
    return f"""\
# Options of this folder's jobs. Typed options come first: shoal training run --nodes 2 -- --lr 1e-3
# All keys: shoal init --schema. The job that results: shoal training run --print-spec

name: {_quoted(project.name)}
run: {_quoted(project.script)}
{args}

# nodes: 1                      # or 1:4, for as many as are free
# accels: 1                     # slots per node, one worker on each
# gpu: H100                     # or H100:8, for 8 per node
# time_limit: 8h
# datasets: [wikitext]          # at /input/wikitext
# env: {{WANDB_PROJECT: {_quoted(project.name)}}}
# secrets: {{WANDB_API_KEY: wandb}}

profiles:
  debug:                        # shoal training run --profile debug
    nodes: 1
    time_limit: 10m
    {debug}
"""


def _python_files(folder: Path) -> Iterator[str]:
    """Yield the paths of Python files at most two folders deep, without hidden folders, environments and tests."""
    count = 0
    for root, folders, names in os.walk(folder):
        here = Path(root).relative_to(folder)
        if (Path(root) / "pyvenv.cfg").is_file() or len(here.parts) >= 2:
            folders[:] = []
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in _FOLDERS)
        if (Path(root) / "pyvenv.cfg").is_file():
            continue
        for name in sorted(names):
            if name.endswith(".py") and not _NEVER.fullmatch(name) and (count := count + 1) <= MOST_FILES:
                yield (here / name).as_posix()


def _beginning(path: Path, most_bytes: int = 200_000) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most_bytes).decode(errors="replace")
    except OSError:
        return ""


def _quoted(text: str) -> str:
    """Return a text as a YAML value: plain if it can be, else in quotes."""
    plain = re.fullmatch(r"[A-Za-z][\w./-]*( [\w./-]+)*", text) and text.lower() not in ("true", "false", "null")
    return text if plain else "'" + text.replace("'", "''") + "'"
