"""Environments that sources need, and when two sources share one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from shoal.agent.workers import environment
from shoal.agent.workers.environment import Builder, remove_unused


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
    assert said == [] and len(list((tmp_path / "cache/envs").glob("*/ready.json"))) == 2, (
        "itself, and what finds it again"
    )
    assert not list((tmp_path / "cache/envs").glob("*/venv"))


def package(folder: Path, name: str, version: str, *needs: str) -> None:
    """Pretend that a package is installed."""
    for old in folder.glob(f"{name}-*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    made = folder / f"{name}-{version}.dist-info"
    made.mkdir(parents=True)
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    (made / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n{requires}\nText.\n")


def test_only_packages_that_are_used_make_an_environment_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "site-packages"
    package(runtime, "used", "1.0", "under>=1", 'more ; extra == "all"')
    package(runtime, "under", "1.0")
    package(runtime, "more", "1.0")
    monkeypatch.syspath_prepend(str(runtime))
    built: list[str] = []

    def build(self: Builder, home: Path, *_: object) -> tuple[str, Path]:
        built.append(home.name)
        home.mkdir(parents=True, exist_ok=True)
        return environment._mark_ready(home, "runtime")

    monkeypatch.setattr(Builder, "_build", build)
    folder = source(tmp_path, "used>=1\n")

    def builds() -> int:
        builder(tmp_path).interpreter(folder, {}, "k")
        return len(built)

    assert [builds(), builds()] == [1, 1]
    package(runtime, "unrelated", "3.0")
    package(runtime, "more", "2.0")
    assert builds() == 1, "neither a new package nor one of an extra that was not asked for"
    package(runtime, "under", "1.1")
    assert [builds(), builds()] == [2, 2], "what a requirement needs in turn"
    package(runtime, "under", "1.0")
    assert builds() == 2, "the first environment is still there"
    (folder / "requirements.txt").write_text("used>=1\n./vendor/own\n")
    assert builds() == 3
    package(runtime, "unrelated", "4.0")
    assert builds() == 4, "what a package in the source needs is not known"


def test_another_file_than_requirements_is_installed_if_it_can_be_and_else_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = source(tmp_path, None), list[str]()
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["pydantic>=2", "torch>=99"]\n')
    assert builder(tmp_path, said).interpreter(folder, dict(os.environ), "k") == sys.executable
    assert "pyproject.toml asks for torch>=99" in said[0] and "are not installed" in said[1]
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["pydantic>=2"]\n')
    said.clear()
    assert builder(tmp_path, said).interpreter(folder, dict(os.environ), "k") == sys.executable
    assert said == []


def test_environments_nobody_used_for_long_are_removed(tmp_path: Path) -> None:
    folder = source(tmp_path, "pydantic>=2\n")
    builder(tmp_path).interpreter(folder, dict(os.environ), "k")
    markers = list((tmp_path / "cache/envs").glob("*/ready.json"))
    remove_unused(tmp_path / "cache")
    assert markers and all(marker.exists() for marker in markers)
    for marker in markers:
        os.utime(marker, (time.time() - 40 * 86400,) * 2)
    remove_unused(tmp_path / "cache")
    assert not any(marker.parent.exists() for marker in markers)
