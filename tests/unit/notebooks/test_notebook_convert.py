"""Choosing cells, requirements, what is refused, and the smaller rules of conversion."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notebook_corpus import AWKWARD, KEPT, Awkward, C, text

from shoal.core.errors import InvalidSpec
from shoal.core.notebooks import Receipt
from shoal.notebooks import Conversion, convert
from shoal.notebooks.pip import Requirements, read_pip
from shoal.notebooks.shell import expression, parts, words_of


def of(*sources: str, entry_cell: str | None = None) -> Conversion:
    cells = [C(source, KEPT) if not source.startswith("# md") else text(source) for source in sources]
    return convert(Awkward(cells).bytes(), "n.ipynb", entry_cell=entry_cell)


def order(made: Conversion) -> list[int]:
    lines = made.script.splitlines()
    return [int(line.split()[3]) for line in lines if line.startswith("# %% cell")]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("3", [3]),
        ("2-4", [2, 4]),
        ("4-", [4, 5]),
        ("-2", [1, 2]),
        ("5,1-2,5", [5, 1, 2]),
        ("run", [5]),
        ("1, run", [1, 5]),
    ],
)
def test_entry_cell_chooses_cells_in_its_own_order(wanted: str, chosen: list[int]) -> None:
    cells = [C("a = 1", KEPT), C("b = 1", KEPT), text("# words"), C("c = 1", KEPT), C("d = 1", KEPT, tags=["run"])]
    if wanted == "3":
        with pytest.raises(InvalidSpec, match="only text"):
            convert(Awkward(cells).bytes(), "n.ipynb", entry_cell=wanted)
        return
    made = convert(Awkward(cells).bytes(), "n.ipynb", entry_cell=wanted)
    assert order(made) == chosen
    dropped = [cell for cell in made.receipt.cells if cell.number not in chosen and cell.kind == "code"]
    assert all(f"not among --entry-cell {wanted}" in cell.text for cell in dropped)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("9", "1 to 2"),
        ("2-1", "1 to 2"),
        ("0", "numbered 1"),
        ("train", "no code cell has this tag"),
        ("", "tag"),
    ],
)
def test_cells_that_are_not_there_are_named(wanted: str, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said) as caught:
        of("a = 1", "b = 2", entry_cell=wanted)
    assert "shoal notebook convert n.ipynb" in (caught.value.hint or "")


def test_what_other_cells_install_is_needed_all_the_same() -> None:
    assert of("%pip install einops", "x = 1", entry_cell="2").requirements == ["einops"]


def test_cells_that_ran_in_another_order_can_be_given_in_it() -> None:
    data = AWKWARD["out_of_order"].bytes()
    told = convert(data, "n.ipynb").receipt.cells[0].changes[0]
    assert told.hint == "--entry-cell 2,3,4,1"
    made = convert(data, "n.ipynb", entry_cell="2,3,4,1")
    assert not made.receipt.decisions and order(made) == [2, 3, 4, 1]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><title>Sign in</title>", "web page"),
        (b"not json", "is not JSON"),
        (b"[]", "names no nbformat"),
        (b'{"cells": []}', "names no nbformat"),
        (b'{"nbformat": 2, "cells": []}', "format 2"),
        (b'{"nbformat": 4}', "no list of cells"),
        (b'{"nbformat": 4, "cells": [3]}', "cell 1"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": 3}]}', "without text"),
        (
            json.dumps({"nbformat": 4, "cells": [], "metadata": {"kernelspec": {"language": "R"}}}).encode(),
            "written in r",
        ),
        (b'{"nbformat": 4, "cells": ' + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_python_notebook_is_refused_with_the_reason(data: bytes, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said) as caught:
        convert(data, "n.ipynb")
    assert caught.value.message.startswith("n.ipynb ")


def test_code_too_deep_to_read_is_a_decision() -> None:
    made = of("x = " + "(" * 5000 + ")" * 5000, "y = 1")
    assert [cell.fate for cell in made.receipt.cells] == ["decision", "kept"]


@pytest.mark.parametrize(
    ("command", "lines", "local"),
    [
        ("pip install torch", ["torch"], []),
        ("pip3 install -q -U 'torch>=2' einops", ["torch>=2", "einops"], []),
        ("pip install torch>=2.0 numpy<2", ["torch>=2.0", "numpy<2"], []),
        ("python -m pip install --index-url https://x/simple a", ["--index-url https://x/simple", "a"], []),
        ("pip install --extra-index-url=https://x a --pre", ["--extra-index-url https://x", "a", "--pre"], []),
        ("uv pip install a==1", ["a==1"], []),
        ("/usr/bin/python3 -m pip install a --timeout 3", ["a"], []),
        ("pip install -r requirements.txt -e . ./x a.whl", [], ["-r requirements.txt", ".", "./x", "a.whl"]),
        ("pip install git+https://github.com/a/b@v1 > /dev/null 2>&1", ["git+https://github.com/a/b@v1"], []),
        ("pip install -q a | tail -n 1", ["a"], []),
        (
            "pip -q install -e git+https://x.org/a -r https://x.org/r.txt",
            ["git+https://x.org/a", "-r https://x.org/r.txt"],
            [],
        ),
        ("conda install -y -c conda-forge faiss-cpu=1.8", ["faiss-cpu==1.8"], []),
        ("{sys.executable} -m pip install a  # for plots", ["a"], []),
    ],
)
def test_pip_becomes_requirements(command: str, lines: list[str], local: list[str]) -> None:
    asked = read_pip(words_of(command))
    assert asked is not None and (asked.verb, asked.lines, asked.local) == ("install", lines, local)


@pytest.mark.parametrize("command", ["pipx run x", "python train.py", "echo pip install x", "./pip install"])
def test_other_commands_are_not_pip(command: str) -> None:
    asked = read_pip(words_of(command))
    assert asked is None or not asked.lines


def test_the_later_requirement_counts_and_the_folders_own_stay() -> None:
    wanted = Requirements.of(["Torch==2.0", "a_b", "torch>=2.1", "A-B[x]==3"])
    assert list(wanted.lines.values()) == ["torch>=2.1", "A-B[x]==3"]
    assert wanted.after("# ours\na.b==1\n\nnumpy\n") == ["# ours", "a.b==1", "numpy", "torch>=2.1"]


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("a && b; c || d & e", ["a", "b", "c", "d", "e"]),
        ("echo 'x && y' \"; z\" 2>&1", ["echo 'x && y' \"; z\" 2>&1"]),
        ("a &> log", ["a &> log"]),
    ],
)
def test_commands_of_a_line_are_told_apart(command: str, made: list[str]) -> None:
    assert parts(command) == made


@given(st.text(alphabet="ab ${}'\"\\x[]()+\n", max_size=30))
def test_any_command_becomes_a_python_string(command: str) -> None:
    namespace = {"a": "A", "b": "B", "ab": "AB"}
    made = eval(expression(command, set(namespace)), dict(namespace))
    assert isinstance(made, str)
    if "$" not in command and "{" not in command:
        assert made == command


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
@given(st.lists(st.text(alphabet="x=1 \n\t!%?'\"#\\()[]{}:@", max_size=40), max_size=4))
def test_no_cell_is_lost_whatever_is_in_it(sources: list[str]) -> None:
    made = convert(Awkward([C(source, KEPT) for source in sources]).bytes(), "n.ipynb")
    assert [cell.number for cell in made.receipt.cells] == list(range(1, len(sources) + 1))
    compile(made.script, "n.py", "exec")


def test_the_receipt_travels_as_json_with_script_and_requirements() -> None:
    files = of("%pip install einops", "x = 1").files("numpy\n", "sub")
    assert sorted(files) == ["requirements.txt", "sub/n.py", "sub/n.receipt.json", "sub/shoal_cells.py"]
    assert files["requirements.txt"] == "numpy\neinops\n"
    receipt = Receipt.model_validate_json(files["sub/n.receipt.json"])
    line = receipt.cells[1].script_line or 0
    assert files["sub/n.py"].splitlines()[line] == "x = 1"


@pytest.mark.parametrize(
    ("title", "script"),
    [("My model (2).ipynb", "My_model_2.py"), ("json.ipynb", "json_notebook.py"), ("..ipynb", "notebook.py")],
)
def test_the_script_has_a_name_that_hides_no_module(title: str, script: str) -> None:
    assert convert(Awkward([C("x = 1", KEPT)]).bytes(), title).script_name == script


@pytest.mark.parametrize(
    ("cell", "fate", "script"),
    [
        ("import sys\n!{sys.executable} -m pip install einops", "turned", "import sys"),
        ("%%script false --no-raise-error\nx", "dropped", None),
        ("%%script bash\nls", "turned", "_nb.script('bash', '''\\"),
        ("name = 'a'\n!git clone https://x.org/{name} && cd {name} && pip install -e .", "decision", "name = 'a'"),
        ("#@title Form\nlr = 0.1 #@param {type:\"number\"}", "kept", "#@title Form"),
        ("!CUDA_VISIBLE_DEVICES=0 python run.py \\\n  --lr 1", "turned", "_nb.sh('CUDA_VISIBLE_DEVICES=0 python run.py --lr 1')"),
        ("%lprun -f fit fit(3)", "turned", "fit(3)"),
        ("if True:\n    %pip install einops", "turned", "if True:"),
        ("from IPython import display\ndisplay.clear_output()", "turned", "from IPython import display"),
        ("!curl http://localhost:8000/health", "turned", "_nb.sh('curl http://localhost:8000/health')"),
        ("return 3", "decision", None),
        ("import os; from google.colab import drive; print(1)", "turned", "import os; pass; print(1)"),
        ("é = 'ü'; from google.colab import userdata; k = userdata.get('K')", "turned", "é = 'ü'; pass; k = _nb.secret('K')"),
    ],
)  # fmt: skip
def test_what_notebooks_often_hold(cell: str, fate: str, script: str | None) -> None:
    made = of(cell)
    assert made.receipt.cells[0].fate == fate
    place = made.receipt.cells[0].script_line
    assert (made.script.splitlines()[place] if place is not None else None) == script


def test_modules_beside_it_and_those_it_writes_are_not_missed() -> None:
    cells = [C("%%writefile helper.py\nx = 1", KEPT), C("import helper, utils, package, einops", KEPT)]
    made = convert(Awkward(cells).bytes(), "n.ipynb", beside=["utils.py", "package", "n.ipynb"])
    assert "not installed by any cell: einops." in made.receipt.notes[0]
    assert made.imports == {"utils", "package", "einops"}


def test_packages_that_no_cell_installs_are_noted() -> None:
    made = of(
        "%pip install pandas",
        "import os, torch, pandas\nfrom sklearn import svm\ntry:\n    import apex\nexcept ImportError: pass",
    )
    assert made.receipt.notes == [
        "Imported, but not installed by any cell: sklearn. If the machines do not have them, add: %pip install scikit-learn"
    ]
