"""`training run --notebook` and `shoal notebook …` against a scripted server."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply
from test_cli_training import accept, asked

SOURCES = "/workspaces/default/sources"
GOOD = ("%pip install einops", "x = 1\n!echo {x}")
OPEN = ("from google.colab import drive\ndrive.mount('/content/drive')", "x = 1")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def make(*cells: str, name: str = "net.ipynb") -> Path:
        made = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}))
        return tmp_path

    return make


def sent_files(stub: Stub) -> list[str]:
    return [file["path"] for file in asked(stub, "/sources")["manifest"]["files"]]


def test_a_notebook_is_sent_as_script_requirements_and_receipt(cli: Cli, stub: Stub, write: Any) -> None:
    folder = write(*GOOD)
    accept(stub)
    ran = cli("training", "run", "hello", "--notebook", "net.ipynb", "--entry-cell", "2", "--", "--lr", "1")
    assert ran.code == 0, ran.err
    assert asked(stub, "/jobs")["entry"] == ["net.py", "--lr", "1"]
    assert sent_files(stub) == ["net.py", "net.receipt.json", "requirements.txt", "shoal_cells.py"]
    origin = {"kind": "notebook", "path": str(folder / "net.ipynb"), "entry_cell": "2", "script": "net.py"}
    assert asked(stub, "/sources")["origin"] == origin
    assert "net.ipynb: 2 cells: 1 changed, 1 dropped; requirements: einops." in ran.err


def test_its_folder_may_travel_with_it(cli: Cli, stub: Stub, write: Any) -> None:
    write("import helper, json\n%pip install einops", name="sub/net.ipynb")
    Path("sub/helper.py").write_text("")
    Path("requirements.txt").write_text("numpy\n")
    accept(stub)
    ran = cli("training", "run", "hello", "--notebook", "sub/net.ipynb")
    assert ran.code == 2 and "imports helper, which is in its folder" in ran.err and "--dir sub" in ran.err
    assert not [a for a in stub.asked if a.path.endswith("/jobs")]
    ran = cli("training", "run", "hello", "--notebook", "sub/net.ipynb", "--dir", ".")
    assert ran.code == 0, ran.err
    assert asked(stub, "/jobs")["entry"] == ["sub/net.py"]
    assert {"requirements.txt", "sub/helper.py", "sub/net.py", "sub/shoal_cells.py"} < set(sent_files(stub))


def test_what_needs_a_decision_is_not_submitted_unless_asked_to(cli: Cli, stub: Stub, write: Any) -> None:
    write(*OPEN)
    accept(stub)
    ran = cli("training", "run", "hello", "--notebook", "net.ipynb")
    assert ran.code == 2 and not stub.asked[1:]
    assert "warning: cell 1, line 2: drive.mount('/content/drive'): Google Drive is not available in a job" in ran.err
    assert "1 cell of net.ipynb needs a decision; nothing was submitted" in ran.err and "--as-is" in ran.err
    assert cli("training", "run", "hello", "--notebook", "net.ipynb", "--as-is").code == 0


def test_a_url_is_fetched_by_the_server(cli: Cli, stub: Stub, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"number": 1, "kind": "code", "ran_as": None, "fate": "kept", "text": "as it is", "script_line": 5}
    receipt = {"notebook": "n.ipynb", "script": "n.py", "requirements": [], "cells": [cell], "notes": ["A note."]}
    made = {"source": {"id": "src_2", "manifest_id": "m", "size": 1, "files": 3}, "entry": "n.py", "receipt": receipt}
    accept(stub)
    stub.routes[f"POST {SOURCES}/notebook"] = reply(200, made)
    monkeypatch.setattr(sys, "stdin", io.StringIO("s3cret\n"))
    url = "https://colab.research.google.com/drive/1r1WTCnvZ81du3b9WJy"
    ran = cli("training", "run", "hello", "--notebook", url, "--token-stdin", "--", "-x")
    assert ran.code == 0, ran.err
    assert asked(stub, "/sources/notebook") == {"url": url, "token": "s3cret", "entry_cell": None}
    spec = asked(stub, "/jobs")
    assert (spec["source_id"], spec["entry"]) == ("src_2", ["n.py", "-x"])
    assert "n.ipynb: 1 cell: 1 kept." in ran.err and "A note." in ran.err and "s3cret" not in ran.err + ran.out
    stub.routes[f"GET {SOURCES}/src_1/receipt"] = reply(200, receipt)
    stub.routes["GET /workspaces/default/jobs/hello"] = reply(200, views.job("running"))
    source = views.job("running")["spec"]["source_id"]
    stub.routes[f"GET {SOURCES}/{source}/receipt"] = reply(200, receipt)
    assert json.loads(cli("notebook", "receipt", "hello", "--json").out)["cells"][0]["text"] == "as it is"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--notebook", "no.ipynb"], "There is no notebook no.ipynb"),
        (["--notebook", "."], "is a folder"),
        (["--notebook", "words.ipynb"], "words.ipynb contains no code"),
        (["--notebook", "net.ipynb", "--entry-cell", "7"], "1 to 2"),
        (["--notebook", "net.ipynb", "--file", "x.py"], "cannot be combined"),
        (["--notebook", "https://x.org/n.ipynb", "--dir", "."], "cannot be combined"),
        (["--file", "net.ipynb"], "training run NAME --notebook net.ipynb"),
        (["--", "net.ipynb", "--lr", "1"], "training run NAME --notebook net.ipynb"),
        (["--entry-cell", "7"], "--entry-cell needs --notebook"),
        (["--as-is"], "--as-is needs --notebook"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_sent(
    cli: Cli, stub: Stub, write: Any, options: list[str], said: str
) -> None:
    write(*GOOD)
    write("", name="words.ipynb")
    accept(stub)
    ran = cli("training", "run", "hello", *options)
    assert ran.code in (2, 3) and said in ran.err, ran.err
    assert not [a for a in stub.asked if a.method == "POST"]


def test_convert_shows_every_cell_and_writes_what_runs(cli: Cli, write: Any) -> None:
    folder = write(*GOOD)
    ran = cli("notebook", "convert", "net.ipynb", "-o", "out")
    assert ran.code == 0, ran.err
    assert [line.split()[:3] for line in ran.out.splitlines()[1:3]] == [
        ["1", "code", "changed"],
        ["2", "code", "changed"],
    ]
    assert sorted(p.name for p in (folder / "out").iterdir()) == [
        *("net.py", "net.receipt.json", "requirements.txt", "shoal_cells.py")
    ]
    assert cli("notebook", "convert", "net.ipynb", "-o", "out").code == 0, "again is fine"
    (folder / "out/net.py").write_text("mine = 1\n")
    ran = cli("notebook", "convert", "net.ipynb", "-o", "out")
    assert ran.code == 4 and "already exists" in ran.err
    assert (folder / "out/net.py").read_text() == "mine = 1\n"
    assert len(json.loads(cli("notebook", "convert", "net.ipynb", "--json").out)["cells"]) == 2
