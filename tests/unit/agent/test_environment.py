"""Which environment a source needs, and when it is the same as another's."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from shoal.agent.environment import Builder, remove_unused


def builder(tmp_path: Path, said: list[str] | None = None) -> Builder:
    return Builder(tmp_path / "cache", sys.executable, (said if said is not None else []).append, lambda: False)


def source(tmp_path: Path, requirements: str | None) -> Path:
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    if requirements is not None:
        (folder / "requirements.txt").write_text(requirements)
    return folder


@pytest.mark.parametrize("requirements", [None, "", "# nothing\n\n"])
def test_without_requirements_the_runtime_itself_is_used(tmp_path: Path, requirements: str | None) -> None:
    assert builder(tmp_path).interpreter(source(tmp_path, requirements), {}, "k") == sys.executable
    assert not (tmp_path / "cache").exists()


def test_requirements_that_the_runtime_satisfies_build_nothing_and_are_remembered(tmp_path: Path) -> None:
    said: list[str] = []
    folder = source(tmp_path, "pydantic>=2  # core\npsutil ; python_version > '3'\nnot-there; python_version < '3'\n")
    assert builder(tmp_path, said).interpreter(folder, dict(os.environ), "k") == sys.executable
    assert said == [] and len(list((tmp_path / "cache/envs").glob("*/ready.json"))) == 1
    assert not list((tmp_path / "cache/envs").glob("*/venv"))


def test_environments_nobody_used_for_long_are_removed(tmp_path: Path) -> None:
    folder = source(tmp_path, "pydantic>=2\n")
    builder(tmp_path).interpreter(folder, dict(os.environ), "k")
    (marker,) = (tmp_path / "cache/envs").glob("*/ready.json")
    remove_unused(tmp_path / "cache")
    assert marker.exists()
    os.utime(marker, (time.time() - 40 * 86400,) * 2)
    remove_unused(tmp_path / "cache")
    assert not marker.parent.exists()
