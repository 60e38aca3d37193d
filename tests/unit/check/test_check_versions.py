"""Scripts for older versions of transformers are told which ones they fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from looking import look

from shoal.check.rules import versions

TRAINER = "from transformers import Trainer\nTrainer(model=1, tokenizer=2)\n"
ARGUMENTS = "from transformers import TrainingArguments as A\nA('/output-checkpoint', evaluation_strategy='epoch')\n"
PARSED = (
    "from transformers import HfArgumentParser, TrainingArguments\n"
    "p = HfArgumentParser((TrainingArguments,))\np.parse_args_into_dataclasses()\n"
)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_installed", lambda: (5, 22, 2))


def found(
    folder: Path, text: str, requirements: str | None = None, args: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    files = {"train.py": text} | ({"requirements.txt": requirements} if requirements is not None else {})
    view = look(folder, files, args=args)
    return [(f.message, f.fix) for f in view.findings if f.rule == "old-transformers"]


@pytest.mark.parametrize(
    ("text", "args", "what", "pin"),
    [
        (TRAINER, (), "Trainer(tokenizer=…)", "transformers<5"),
        (ARGUMENTS, (), "TrainingArguments(evaluation_strategy=…)", "transformers<4.46"),
        (PARSED, ("--logging_dir", "logs"), "--logging_dir", "transformers<5"),
        (PARSED, ("--logging_dir=logs",), "--logging_dir", "transformers<5"),
    ],
)
def test_the_versions_a_script_fits_are_named_with_the_pin(
    tmp_path: Path, text: str, args: tuple[str, ...], what: str, pin: str
) -> None:
    ((message, fix),) = found(tmp_path, text, args=args)
    assert message == f"{what} fits {pin} only."
    assert f"Add `{pin}` to requirements.txt" in fix


@pytest.mark.parametrize(
    ("requirements", "is_found"),
    [
        ("torch\ntransformers\n", True),
        ("transformers>=4.30\n", True),
        ("transformers>=4.30,<6\n", True),
        ("transformers_stream<1\n", True),
        ("transformers<5\n", False),
        ("transformers>=4.30,<5  # old\n", False),
        ("Transformers[torch] == 4.44.2\n", False),
        ("transformers~=4.40\n", False),
        ("transformers<=4.57\n", False),
        ("transformers==5.0\n", True),
    ],
)
def test_a_pin_that_fits_is_enough(tmp_path: Path, requirements: str, is_found: bool) -> None:
    assert bool(found(tmp_path, TRAINER, requirements)) is is_found


def test_a_pin_that_is_too_new_for_one_of_two_is_told_for_that_one(tmp_path: Path) -> None:
    ((message, _),) = found(tmp_path, TRAINER + ARGUMENTS, "transformers<5\n")
    assert "4.46" in message


def test_an_old_version_that_is_installed_is_enough_without_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_installed", lambda: (4, 44, 2))
    assert found(tmp_path, TRAINER + ARGUMENTS) == []


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("from transformers import Trainer\nTrainer(model=1, processing_class=2)\n", ()),
        (
            "from transformers import Trainer\nclass Mine(Trainer):\n    def __init__(self, model, tokenizer): ...\nMine(1, tokenizer=2)\n",
            (),
        ),
        ("from trl import SFTTrainer\nSFTTrainer(1, tokenizer=2)\n", ()),
        (PARSED, ()),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--logging_dir')\np.parse_args()\n",
            ("--logging_dir", "x"),
        ),
    ],
)
def test_what_is_not_old_is_not_named(tmp_path: Path, text: str, args: tuple[str, ...]) -> None:
    assert found(tmp_path, text, args=args) == []
