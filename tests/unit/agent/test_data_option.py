"""`--data` is added for scripts that accept it, wherever they define it, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.agent.workers.data_option import accepts_data, passes_data, wants_data

HF = "from transformers import HfArgumentParser\n"
FIELD = "@dataclass\nclass DataArguments:\n    data: str = ''\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "accepts"),
    [
        ("p.add_argument('--data', type=str)", True),
        ("p.add_argument('-d', \"--data\")", True),
        ("if __name__ == '__main__':\n    p.add_argument('--data')", True),
        ("p.add_argument('--data_dir')", False),
        ("p.add_argument('--datafile'); data = 1", False),
        (HF + "@dataclass\nclass A:\n    data: str = ''\n", True),
        (HF + "@dataclass\nclass A:\n    data_dir: str = ''\n", False),
        ("@dataclass\nclass A:\n    data: str = ''\n", False),
        ("def broken(:  # '--data'", False),
    ],
)
def test_a_script_that_takes_data_is_recognised(tmp_path: Path, text: str, accepts: bool) -> None:
    write(tmp_path, train=text)
    assert accepts_data(tmp_path, "train.py") is accepts


ADDS = "import argparse\ndef get_args():\n    p = argparse.ArgumentParser()\n    p.add_argument('--data')\n    return p.parse_args()\n"

ELSEWHERE = {
    "a function of a module": {"train": "from options import get_args\nget_args()", "options": ADDS},
    "a function of an imported module": {"train": "import options\nargs = options.get_args()", "options": ADDS},
    "a module of a package": {"train": "from lib import options\noptions.get_args()", "lib__options": ADDS},
    "a relative import": {
        "train": "from lib.start import main\nmain()",
        "lib__start": "from .options import get_args\ndef main(): get_args()",
        "lib__options": ADDS,
    },
    "a parser made at import": {"train": "import options", "options": "parser.add_argument('--data')"},
    "a function that another one calls": {
        "train": "from options import parse\nparse()",
        "options": ADDS + "def parse(): return get_args()\n",
    },
    "a dataclass": {
        "train": HF + "from arguments import DataArguments\np = HfArgumentParser((DataArguments,))",
        "arguments": FIELD,
    },
    "a dataclass of a module": {
        "train": HF + "import arguments\np = HfArgumentParser(arguments.DataArguments)",
        "arguments": FIELD,
    },
    "the base of a dataclass": {
        "train": HF
        + "from arguments import DataArguments\nclass Mine(DataArguments): pass\np = HfArgumentParser(dataclass_types=Mine)",
        "arguments": FIELD,
    },
    "a parser and a dataclass elsewhere": {
        "train": "from setup import parse\nparse()",
        "setup": HF + "from arguments import DataArguments\ndef parse(): HfArgumentParser([DataArguments])",
        "arguments": FIELD,
    },
    "a script in a folder": {"scripts__train": "from options import get_args\nget_args()", "scripts__options": ADDS},
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_data_is_found_in_modules_that_the_script_imports(tmp_path: Path, case: str) -> None:
    write(tmp_path, **ELSEWHERE[case])
    script = "scripts/train.py" if "scripts__train" in ELSEWHERE[case] else "train.py"
    assert accepts_data(tmp_path, script)


OTHERS = {
    "a module nobody imports": {"train": "import lib", "lib": "x = 1", "options": ADDS},
    "a module that is also a script": {
        "train": "from prepare import clean",
        "prepare": "def clean(): ...\nif __name__ == '__main__':\n    p.add_argument('--data')",
    },
    "a main function of another script": {
        "train": "from prepare import clean\ndef main(): ...\nmain()",
        "prepare": "def clean(): ...\ndef main():\n    p.add_argument('--data')\nif __name__ == '__main__':\n    main()",
    },
    "a dataclass that is not parsed": {
        "train": HF + "from batch import Batch\np = HfArgumentParser((Arguments,))",
        "batch": "@dataclass\nclass Batch:\n    data: object\n",
    },
    "a module with a syntax error": {"train": "import lib", "lib": "def ('--data')"},
    "modules that import each other": {"train": "import a", "a": "import b  # '--data'", "b": "import a"},
}


@pytest.mark.parametrize("case", OTHERS)
def test_data_of_something_else_is_not_taken_for_the_script_s(tmp_path: Path, case: str) -> None:
    write(tmp_path, **OTHERS[case])
    assert not accepts_data(tmp_path, "train.py")


def test_data_given_by_the_user_is_noticed(tmp_path: Path) -> None:
    assert passes_data(["t.py", "--data", "x"]) and passes_data(["t.py", "--data=x"])
    assert not passes_data(["t.py", "--dataset", "x"])
    write(tmp_path, t="p.add_argument('--data')")
    assert wants_data(["t.py"], tmp_path, "t.py") and not wants_data(["t.py", "--data=x"], tmp_path, "t.py")
    assert not wants_data(["-m", "t"], tmp_path, None)


def test_a_script_that_is_not_there_takes_nothing(tmp_path: Path) -> None:
    assert not accepts_data(tmp_path, "missing.py")
