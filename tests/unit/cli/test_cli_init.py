"""`shoal init`: the project file it writes is one that `training run` reads. Templates run in tests/integration/test_init.py."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from clirun import Cli

from shoal.cli.init.app import Template
from shoal.cli.init.files import TEMPLATES
from shoal.cli.shared.project_file import read_project
from shoal.core.project_file import ProjectFile

TORCH = "import torch\n"
MAIN = "if __name__ == '__main__':\n    pass\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "My project (2)"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_file_makes_training_run_work_without_arguments(cli: Cli, here: Path) -> None:
    files(here, train=TORCH)
    ran = cli("init")
    assert (ran.code, ran.out) == (0, "shoal.yaml\n"), ran.err
    assert "named 'My-project-2' and run train.py" in ran.err and "shoal training run -f" in ran.err
    spec = json.loads(cli("training", "run", "--print-spec").out)
    assert (spec["name"], spec["entry"], spec["accels"]) == ("My-project-2", ["train.py"], 1)
    assert json.loads(cli("training", "run", "--print-spec", "--profile", "debug").out)["time_limit_s"] == 600


@pytest.mark.parametrize(
    ("texts", "script"),
    [
        ({"train": "", "main": TORCH + MAIN}, "train.py"),
        ({"main": MAIN, "helper": "", "model": TORCH}, "main.py"),
        ({"model": TORCH, "gpt_train": TORCH + MAIN}, "gpt_train.py"),
        ({"utils": "", "fit": TORCH + MAIN}, "fit.py"),
        ({"code__train": TORCH, "setup": MAIN, "tests__test_train": MAIN, "test_train": MAIN}, "code/train.py"),
        ({".venv__train": TORCH, "only": ""}, "only.py"),
        ({"odd name": TORCH + MAIN}, "'odd name.py'"),
    ],
)
def test_the_script_is_found(cli: Cli, here: Path, texts: dict[str, str], script: str) -> None:
    files(here, **texts)
    (here / "env").mkdir()
    (here / "env" / "pyvenv.cfg").touch()
    (here / "env" / "train.py").write_text(TORCH)
    assert cli("init", "--yes").code == 0
    assert read_project(here / "shoal.yaml").run == script
    name = script.strip("'")
    assert json.loads(cli("training", "run", "--print-spec").out)["entry"] == [name]


@pytest.mark.parametrize(
    ("typed", "script"), [("\n", "train.py"), ("eval.py\n", "eval.py"), ("-m pkg.x\n", "-m pkg.x")]
)
def test_a_person_is_asked_for_the_script_only(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, typed: str, script: str
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    files(here, train=TORCH, eval=TORCH)
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    ran = cli("init", "--name", "gpt")
    assert ran.code == 0 and "Script to run [train.py]: " in ran.err, ran.err
    found = read_project(here / "shoal.yaml")
    assert (found.name, found.run) == ("gpt", script)


def test_an_existing_file_is_kept(cli: Cli, here: Path) -> None:
    files(here, train=TORCH)
    (here / "shoal.yaml").write_text("run: mine.py\n")
    ran = cli("init")
    assert ran.code == 4 and "shoal.yaml already exists" in ran.err and "--force" in ran.err
    assert cli("init", "--template", "pytorch").code == 4
    assert (here / "shoal.yaml").read_text() == "run: mine.py\n" and (here / "train.py").read_text() == TORCH
    assert cli("init", "--force").code == 0 and read_project(here / "shoal.yaml").run == "train.py"


def test_an_empty_folder_is_told_about_templates(cli: Cli, here: Path) -> None:
    ran = cli("init")
    assert ran.code == 2 and "no Python script" in ran.err and "hint: shoal init --template pytorch" in ran.err
    assert not list(here.iterdir())
    ran = cli("init", "not-there")
    assert ran.code == 2 and "is not a folder" in ran.err


def test_every_commented_example_of_the_file_is_valid(cli: Cli, here: Path) -> None:
    files(here, train=TORCH)
    assert cli("init", "--yes", "--name", "1st").code == 0
    lines = (here / "shoal.yaml").read_text().splitlines()
    examples = [re.sub(r"# (?=\w+: )", "", line, count=1) for line in lines if "All keys" not in line]
    (here / "shoal.yaml").write_text("\n".join(line for line in examples if "Options of this" not in line) + "\n")
    found = read_project(here / "shoal.yaml")
    assert {"name", "run", "args", "nodes", "accels", "gpu", "time_limit", "datasets", "env", "secrets"} <= set(
        found.given()
    )
    assert (found.name, found.env, found.options("debug")["args"]) == ("1st", {"WANDB_PROJECT": "1st"}, {"lr": "1e-3"})


@pytest.mark.parametrize("template", get_args(Template))
def test_a_template_passes_the_check(cli: Cli, here: Path, template: str) -> None:
    ran = cli("init", "new/project", "--template", template, "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    needs = ["new/project/requirements.txt"] if template in ("hf", "lightning") else []
    assert told == {
        "files": ["new/project/shoal.yaml", "new/project/train.py", *needs],
        "name": "project",
        "run": "train.py",
    }
    ran = cli("check", "new/project/train.py", "--strict", "--accels", "2", "--json", "--", "--steps", "5")
    assert ran.code == 0, ran.out
    spec = json.loads(cli("training", "run", "--dir", "new/project", "--profile", "debug", "--print-spec").out)
    assert spec["entry"] == ["train.py", "--steps", "20", "--lr", "3e-3"]


def test_there_is_a_template_for_every_choice() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == {f"{name}.py.txt" for name in get_args(Template)}


def test_the_schema_is_printed_for_editors(cli: Cli, here: Path) -> None:
    ran = cli("init", "--schema")
    assert ran.code == 0 and not list(here.iterdir())
    schema = json.loads(ran.out)
    assert schema["title"] == "shoal.yaml" and schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(ProjectFile.model_fields)

    def described(part: dict[str, Any]) -> bool:
        return all(one.get("description") for one in part["properties"].values())

    assert described(schema) and described(schema["$defs"]["ProjectJob"])
    assert schema["$defs"]["ProjectJob"]["additionalProperties"] is False


def test_the_schema_accepts_what_the_reader_accepts(cli: Cli, here: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    from test_cli_project_file import FILE

    schema = json.loads(cli("init", "--schema").out)
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    as_editor = yaml.safe_load(FILE.replace("nodes: 1:4", "nodes: '1:4'").replace("3e-4", "3.0e-4"))
    assert not list(checker.iter_errors(as_editor))
    for wrong in ({"nods": 1}, {"accels": "x"}, {"profiles": {"a": {"gpus": 1}}}, {"env": {"A": True}}):
        assert list(checker.iter_errors(wrong)), wrong
