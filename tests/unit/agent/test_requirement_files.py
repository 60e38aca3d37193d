"""What a source needs is found in the files of pip, uv, Pipenv and conda; a missing module names the file to put it into."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.agent.workers.requirement_files import find, with_advice


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_requirements_come_before_everything_else(tmp_path: Path) -> None:
    assert find(tmp_path) is None
    write(tmp_path, pyproject__toml='[project]\ndependencies = ["b"]\n', requirements__txt="a  # comment\n\n# c\n")
    found = find(tmp_path)
    assert found is not None and found.is_own and found.lines == ["a  # comment"]


def test_pyproject_with_the_versions_of_uv(tmp_path: Path) -> None:
    write(
        tmp_path,
        pyproject__toml="""[project]
dependencies = ["einops>=0.7", "Own-Lib", "torch", "sibling"]
[tool.uv.sources]
own_lib = { git = "https://example.org/own", tag = "v1" }
sibling = { workspace = true }
""",
        uv__lock="""version = 1
[[package]]
name = "einops"
version = "0.8.1"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "torch"
version = "2.9.0+cpu"
source = { registry = "https://download.pytorch.org/whl/cpu" }
[[package]]
name = "numpy"
version = "1.26.0"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "numpy"
version = "2.1.0"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "self"
version = "0.1"
source = { virtual = "." }
""",
    )
    found = find(tmp_path)
    assert found is not None and found.name == "pyproject.toml and uv.lock" and not found.is_own
    assert found.lines == ["einops>=0.7", "own_lib @ git+https://example.org/own@v1", "torch"]
    assert found.constraints == ["einops==0.8.1"], "torch stays the runtime's, and numpy depends on the platform"
    assert "sibling" in found.notes[0]


def test_pipfile_with_its_lock(tmp_path: Path) -> None:
    write(
        tmp_path,
        Pipfile="""[packages]
einops = "*"
tqdm = {version = ">=4", extras = ["notebook"], markers = "python_version > '3'"}
lib = {git = "https://example.org/lib", ref = "main"}
here = {path = "."}
""",
        Pipfile__lock='{"default": {"einops": {"version": "==0.8.0"}, "torch": {"version": "==2.0"}, "lib": {"ref": "x"}}}',
    )
    found = find(tmp_path)
    assert found is not None and found.name == "Pipfile"
    assert found.lines == [
        "einops",
        "tqdm[notebook]>=4 ; python_version > '3'",
        "lib @ git+https://example.org/lib@main",
    ]
    assert found.constraints == ["einops==0.8.0"] and "here" in found.notes[0]


def test_of_conda_the_pip_part_is_used_and_the_rest_is_said_unless_it_is_there(tmp_path: Path) -> None:
    write(
        tmp_path,
        environment__yml="""dependencies:
  - python=3.11
  - conda-forge::numpy>=2
  - pytorch
  - gdal
  - pip
  - pip: [einops, "--no-deps", tqdm]
""",
    )
    found = find(tmp_path, {"numpy": "2.1", "torch": "2.13"})
    assert found is not None and found.lines == ["einops", "tqdm"]
    (note,) = found.notes
    assert "not installed: gdal." in note and "requirements.txt" in note


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("pyproject.toml", '[project]\ndynamic = ["dependencies"]\n', "dynamic"),
        ("pyproject.toml", '[tool.poetry.dependencies]\npython = "^3.11"\neinops = "*"\n', "poetry export"),
        ("pyproject.toml", "[project\n", "cannot be read"),
        ("environment.yml", "- a\n- b\n", "cannot be read"),
    ],
)
def test_what_is_not_understood_is_said(tmp_path: Path, name: str, text: str, word: str) -> None:
    (tmp_path / name).write_text(text)
    found = find(tmp_path)
    assert found is not None and not found.lines and word in found.notes[0]


def test_a_file_without_dependencies_gives_way_to_the_next(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml="[tool.ruff]\n", environment__yml="dependencies: [{pip: [einops]}]\n")
    found = find(tmp_path)
    assert found is not None and found.name == "environment.yml"


REASON = "ModuleNotFoundError: No module named"


def test_a_missing_module_names_the_file_to_put_it_into(tmp_path: Path) -> None:
    def advice(module: str) -> str:
        return with_advice(f"{REASON} '{module}'", tmp_path).removeprefix(f"{REASON} '{module}'. ")

    assert advice("cv2") == "Write a line `opencv-python-headless` into requirements.txt in the source's root"
    assert "`shoal-train`" in advice("shoal"), "the name shoal belongs to another project there"
    write(tmp_path, Pipfile="")
    assert advice("sklearn.svm") == "Add `scikit-learn` to [packages] in Pipfile"
    write(tmp_path, pyproject__toml="")
    assert advice("my_lib") == "Add `my-lib` to dependencies in pyproject.toml"
    write(tmp_path, requirements__txt="")
    assert advice("einops") == "Add `einops` to requirements.txt"
    (tmp_path / "src/ours").mkdir(parents=True)
    assert advice("ours.models") == "It is in src/: run with --env PYTHONPATH=src"
    assert with_advice("ValueError: no", tmp_path) == "ValueError: no"
