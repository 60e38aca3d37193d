"""Sources of a job's code, and whether they contain the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.shared.source import SourceChoice, check_entry
from shoal.core.errors import EntryNotFound, UsageError

PATHS = ["README.md", "code/gpt/train.py", "code/prepare.py", "main.py", "run.sh"]


@pytest.mark.parametrize("entry", [["main.py"], ["./main.py", "--x"], ["code/gpt/train.py"], ["run.sh"]])
def test_a_script_of_the_source_is_taken(entry: list[str]) -> None:
    assert check_entry(entry, PATHS) == [entry[0].removeprefix("./"), *entry[1:]]


@pytest.mark.parametrize("entry", [["torchrun", "main.py"], ["-m", "pkg.train"], ["accelerate", "launch", "x"]])
def test_other_commands_are_taken_at_their_word(entry: list[str]) -> None:
    assert check_entry(entry, PATHS) == entry


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("train.py", "Did you mean 'code/gpt/train.py'?"),
        ("wrong/prepare.py", "Did you mean 'code/prepare.py'?"),
        ("mian.py", "Did you mean 'main.py'?"),
        ("main", "Did you mean 'main.py'?"),
        ("code/gpt", "Did you mean 'code/gpt/train.py'?"),
        ("zzz.py", "It contains code/gpt/train.py, code/prepare.py, main.py, run.sh."),
        ("../main.py", "Did you mean 'main.py'?"),
    ],
)
def test_a_missing_script_is_told_with_what_was_meant(script: str, told: str) -> None:
    with pytest.raises(EntryNotFound) as caught:
        check_entry([script], PATHS)
    assert caught.value.message == f"There is no script {script!r} in the source. {told}"


def test_an_ignored_script_is_told_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "secret.py").touch()
    with pytest.raises(EntryNotFound, match="excludes it"):
        check_entry(["secret.py"], ["other.py"], tmp_path)


def test_a_full_path_into_the_folder_is_understood(tmp_path: Path) -> None:
    assert check_entry([str(tmp_path / "code/prepare.py"), "-v"], PATHS, tmp_path) == ["code/prepare.py", "-v"]
    with pytest.raises(EntryNotFound):
        check_entry(["/elsewhere/zzz.py"], PATHS, tmp_path)


def test_a_missing_entry_suggests_the_likely_script() -> None:
    with pytest.raises(UsageError) as caught:
        check_entry([], PATHS)
    assert (caught.value.hint or "").endswith("-- main.py")


def test_code_comes_from_one_place() -> None:
    SourceChoice().check()
    SourceChoice(repository_url="u", revision="r").check()
    with pytest.raises(UsageError, match="--repository-url and --dir cannot be combined"):
        SourceChoice(repository_url="u", folder=Path()).check()
    with pytest.raises(UsageError, match="--repository-revision needs"):
        SourceChoice(revision="r").check()
