"""Finds what a source needs installed: in requirements.txt, or in the files of uv, pip, Pipenv and conda. Pure, but for reading."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REQUIREMENTS = "requirements.txt"
PYPROJECT, UV_LOCK, PIPFILE, PIPFILE_LOCK = "pyproject.toml", "uv.lock", "Pipfile", "Pipfile.lock"
CONDA = ("environment.yml", "environment.yaml")
NAMES = (REQUIREMENTS, PYPROJECT, PIPFILE, *CONDA)
"""Files that are read, the first that exists. Lock files pin the versions of those beside them."""
_MOST_BYTES = 8 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SAME = {"pytorch": "torch", "pytorch-cpu": "torch", "pytorch-gpu": "torch"}
_NO_PACKAGE = {"python", "pip", "setuptools", "wheel", "cudatoolkit", "pytorch-cuda", "cuda-version", "_openmp_mutex"}
MODULES = {
    "cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn", "skimage": "scikit-image", "yaml": "pyyaml",
    "bs4": "beautifulsoup4", "dateutil": "python-dateutil", "git": "GitPython", "attr": "attrs", "Crypto": "pycryptodome",
    "google.protobuf": "protobuf", "pytorch_lightning": "pytorch-lightning", "OpenSSL": "pyopenssl", "faiss": "faiss-cpu",
    "dotenv": "python-dotenv", "umap": "umap-learn", "shoal": "shoal-train", "NetmindMixins": "shoal-compat", "topspin": "shoal-compat", "palframe": "shoal-compat", "hydra": "hydra-core", "tensorboardX": "tensorboardX",
}  # fmt: skip
"""Module → package on PyPI, where the names differ."""


class Needs:
    """Packages that a source needs, as lines for pip."""

    __slots__ = ("constraints", "lines", "name", "notes")

    def __init__(self, name: str, lines: Iterable[str], constraints: Iterable[str] = (), notes: Iterable[str] = ()):
        self.name = name
        """Name of the file."""
        self.lines = list(lines)
        self.constraints = list(constraints)
        """Versions that a lock file pins."""
        self.notes = list(notes)
        """Sentences about parts of the file that are not used."""

    @property
    def is_own(self) -> bool:
        """True if pip reads the file itself, so that it may contain options and paths."""
        return self.name == REQUIREMENTS


def find(source: Path, installed: Mapping[str, str] | None = None) -> Needs | None:
    """Return what the source needs, or None. `installed`: packages of the runtime, which conda's packages may be."""
    for name in NAMES:
        path = source / name
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            continue
        if name == REQUIREMENTS:
            return Needs(name, requirement_lines(path))
        try:
            found = _READERS[name](path, {n.lower().replace("_", "-") for n in installed or {}})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return Needs(name, [], notes=[f"{name} cannot be read ({error}), so nothing is installed from it"])
        if found.lines or found.notes:
            return found
    return None


def requirement_lines(path: Path) -> list[str]:
    """Return the lines of a requirements file without comments."""
    text = path.read_text("utf-8-sig", "replace")
    return [line for raw in text.splitlines() if (line := raw.strip()) and not line.startswith("#")]


def with_advice(reason: str, source: Path) -> str:
    """Return the reason of a failure; for a module that is missing, with the file and line that install it."""
    found = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", reason)
    if found is None:
        return reason
    module = found[1]
    top = module.partition(".")[0]
    for folder in ("src", "lib", "python"):
        if (source / folder / top).is_dir() or (source / folder / f"{top}.py").is_file():
            return f"{reason}. It is in {folder}/: run with --env PYTHONPATH={folder}"
    if (source / top).is_dir() or (source / f"{top}.py").is_file():
        return f"{reason}. It is in the source's root: run with --env PYTHONPATH=."
    package = MODULES.get(module, MODULES.get(top, top.replace("_", "-")))
    name = next((name for name in NAMES if (source / name).is_file()), None)
    if name is None or name in CONDA:
        return f"{reason}. Write a line `{package}` into {REQUIREMENTS} in the source's root"
    where = {PYPROJECT: "dependencies in pyproject.toml", PIPFILE: "[packages] in Pipfile"}.get(name, name)
    return f"{reason}. Add `{package}` to {where}"


def _pyproject(path: Path, _: set[str]) -> Needs:
    told = tomllib.loads(path.read_text("utf-8-sig"))
    project = told.get("project") or {}
    lines = [str(line) for line in project.get("dependencies") or []]
    notes = []
    if "dependencies" in (project.get("dynamic") or []):
        notes.append("the dependencies in pyproject.toml are dynamic, so none are installed")
    poetry = ((told.get("tool") or {}).get("poetry") or {}).get("dependencies") or {}
    if poetry and not lines:
        notes.append("Poetry's dependencies are not read: poetry export -o requirements.txt")
    sources = ((told.get("tool") or {}).get("uv") or {}).get("sources") or {}
    for name, one in sources.items():
        if isinstance(one, Mapping) and "git" in one:
            lines = [_from_git(line, name, one) for line in lines]
        elif isinstance(one, Mapping) and ("path" in one or one.get("workspace")):
            lines = [line for line in lines if _normal(line) != _normal(name)]
            notes.append(f"{name} is in another folder, and is not installed (use --env PYTHONPATH=FOLDER)")
    lock = path.with_name(UV_LOCK)
    pins = _uv_pins(tomllib.loads(lock.read_text("utf-8-sig"))) if lines and _is_readable(lock) else []
    return Needs(f"{PYPROJECT} and {UV_LOCK}" if pins else PYPROJECT, lines, pins, notes)


def _from_git(line: str, name: str, source: Mapping[str, Any]) -> str:
    if _normal(line) != _normal(name):
        return line
    at = next((f"@{source[key]}" for key in ("rev", "tag", "branch") if key in source), "")
    return f"{name} @ git+{source['git']}{at}"


def _uv_pins(lock: Mapping[str, Any]) -> list[str]:
    """Return constraints for the packages from an index. Those with several versions depend on the platform and are left out."""
    found: dict[str, set[str]] = {}
    for package in lock.get("package") or []:
        if "registry" in (package.get("source") or {}) and "version" in package:
            found.setdefault(str(package["name"]), set()).add(str(package["version"]).partition("+")[0])
    return _pins({name: next(iter(versions)) for name, versions in found.items() if len(versions) == 1})


def _pipfile(path: Path, _: set[str]) -> Needs:
    told = tomllib.loads(path.read_text("utf-8-sig")).get("packages") or {}
    lines, notes = [], []
    for name, wish in told.items():
        line = _pipfile_line(name, wish)
        if line is None:
            notes.append(f"{name} in Pipfile is not installed: only versions and git sources are understood")
        else:
            lines.append(line)
    lock = path.with_name(PIPFILE_LOCK)
    locked = json.loads(lock.read_text("utf-8-sig")).get("default") or {} if lines and _is_readable(lock) else {}
    pins = {name: one["version"][2:] for name, one in locked.items() if str(one.get("version", "")).startswith("==")}
    return Needs(PIPFILE, lines, _pins(pins), notes)


def _pipfile_line(name: str, wish: Any) -> str | None:
    if isinstance(wish, str):
        return name if wish == "*" else f"{name}{wish}"
    if not isinstance(wish, Mapping) or "path" in wish or "file" in wish:
        return None
    extras = f"[{','.join(wish['extras'])}]" if wish.get("extras") else ""
    if "git" in wish:
        return f"{name}{extras} @ git+{wish['git']}" + (f"@{wish['ref']}" if "ref" in wish else "")
    version = str(wish.get("version", "*"))
    marker = f" ; {wish['markers']}" if "markers" in wish else ""
    return f"{name}{extras}{'' if version == '*' else version}{marker}"


def _conda(path: Path, installed: set[str]) -> Needs:
    """Return the pip part of an environment.yml. Its conda packages are named, unless the runtime has them."""
    import yaml  # type: ignore[import-untyped]

    told = yaml.safe_load(path.read_text("utf-8-sig")) or {}
    lines: list[str] = []
    missing = []
    for one in told.get("dependencies") or []:
        if isinstance(one, Mapping):
            lines += [str(line) for line in one.get("pip") or [] if not str(line).startswith("-")]
            continue
        found = _NAME.match(str(one).rpartition("::")[2])
        name = found[0].lower() if found else str(one)
        if name not in _NO_PACKAGE and _SAME.get(name, name).replace("_", "-") not in installed:
            missing.append(name)
    if not missing:
        return Needs(path.name, lines)
    return Needs(path.name, lines, notes=[
        f"conda packages of {path.name} are not installed: {', '.join(missing)}. Those that are on PyPI can be lines of {REQUIREMENTS}"
    ])  # fmt: skip


def _pins(versions: Mapping[str, str]) -> list[str]:
    """Return constraint lines; torch is left to the runtime, as in every environment."""
    from shoal.agent.workers.torch_pin import FAMILY

    return [f"{name}=={version}" for name, version in sorted(versions.items()) if _normal(name) not in FAMILY]


def _normal(line: str) -> str:
    found = _NAME.match(line.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else line


def _is_readable(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= _MOST_BYTES


_READERS = {PYPROJECT: _pyproject, PIPFILE: _pipfile, **dict.fromkeys(CONDA, _conda)}
