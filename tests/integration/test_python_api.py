"""`shoal.connect()` and `%%shoal`: every example of the page about them runs, against a real server."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import EntryNotFound, InvalidSpec, ShoalError, UsageError

PRELOADS = False
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "python.md"
SCRIPT = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
lr = parser.parse_args().lr
for step in range(1, 6):
    print(f"step {step}/5 loss {lr + 1 / step:.4f}", flush=True)
folder = os.path.join(os.environ["FLEXAI_OUTPUT_CHECKPOINT_DIR"], "step-5")
os.makedirs(folder)
open(os.path.join(folder, "model.pt"), "w").write(str(lr))
"""


@pytest.fixture(scope="module")
def here(server, tmp_path_factory):
    """Work in a project's folder, as a person whose private server runs."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "words.txt").write_text("some words\n")
    (folder / ".shoalignore").write_text("model/\n")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SHOAL_") and name != "SHOAL_TEST_PATIENCE"]:
            patch.delenv(name)
        patch.setenv("SHOAL_HOME", str(server.home))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def said(here):
    """What the blocks of the page printed, run one after the other, and their names at the end."""
    pytest.importorskip("pandas")
    names, printed = {}, []
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            exec(compile(block, str(PAGE), "exec"), names)
        printed.append(stdout.getvalue())
    yield printed, names
    names["space"].close()


def test_the_examples_of_the_page_do_what_it_says(said):
    printed, names = said
    first, metrics, runs, checkpoint, sweep, rest = printed
    assert first == "succeeded\n"
    assert "'loss': 0.21" in metrics and metrics.splitlines()[-1].split() == ["0.21", "5"]
    assert re.search(r"first +0.01 +0.21\n.*second +0.10? +0.30", runs)
    assert "step-5" in checkpoint and "['model.pt']" in checkpoint
    assert "{'lr': 0.01}" in sweep and names["sweep"].status == "finished"
    assert "words" in rest and "Did you mean" in rest
    assert repr(names["space"]).startswith("Workspace(default of http://127.0.0.1:")
    assert repr(names["job"]) == "Job(first, succeeded 100%)"
    assert names["space"].machines()[0].slots_total == 4
    assert names["job"].metrics("loss")._repr_html_().count("<svg") == 1


def test_a_job_is_controlled_by_its_object(here):
    (here / "wait.py").write_text("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)\n")
    with shoal.connect() as space:
        job = space.run(["./wait.py"], env={"A": "b"}, device="cpu")
        assert re.fullmatch(r"\w+-\w+-\d\d", job.name) and job.status in ("queued", "starting", "running")
        with pytest.raises(ShoalError, match="still"):
            job.wait(timeout_s=0.1)
        job.stop()
        assert job.wait().status == "stopped"
        assert job.view.spec.env == {"A": "b"}
        name = job.name
        job.delete()
        with pytest.raises(ShoalError, match=name):
            space.job(name)
        with pytest.raises(EntryNotFound, match=r"Did you mean 'wait\.py'"):
            space.run("wiat.py")
        with pytest.raises(InvalidSpec, match=r"device: .*'cuda'"):
            space.run("wait.py", device="nvidia")
        with pytest.raises(InvalidSpec, match=r"gpus: .*Fields: .*accels"):
            space.run("wait.py", gpus=2)
        with pytest.raises(UsageError, match="no folder"):
            space.run("wait.py", folder="nowhere")


@pytest.fixture
def shell(here):
    """An IPython shell as a kernel has it, which keeps what is displayed."""
    ipython = pytest.importorskip("IPython.core.interactiveshell")
    from IPython.core.displaypub import CapturingDisplayPublisher

    made = ipython.InteractiveShell.instance()
    made.display_pub, made.kernel = CapturingDisplayPublisher(), object()
    yield made
    ipython.InteractiveShell.clear_instance()


def test_a_cell_runs_as_a_job_with_a_live_chart_below(shell, here):
    (here / "helper.py").write_text("TEXT = 'loss'\n")
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        shell.run_line_magic("load_ext", "shoal")
        shell.run_cell_magic("shoal", "cell --env A=b -- 7", "import sys, os, helper\n"
                             "for i in range(4): print(f'step {i + 1}/4 {helper.TEXT} {1 / (i + 1)}')\n"
                             "print(os.environ['A'], sys.argv[1])\n")  # fmt: skip
    shown = [one["data"]["text/html"] for one in shell.display_pub.outputs]
    assert stdout.getvalue() == "" and shown, "all is in one place below the cell"
    assert "succeeded" in shown[-1] and "<svg" in shown[-1] and "b 7" in shown[-1]
    assert (
        shell.display_pub.outputs[-1]["transient"]["display_id"]
        == shell.display_pub.outputs[0]["transient"]["display_id"]
    )
    job = shell.user_ns["job"]
    assert job.name == "cell" and job.metrics().last == {"loss": 0.25}
    for line, cell, error in (
        ("--nodes x", "1", "invalid int value"),
        ("", " ", "cell is empty"),
        ("--env A", "1", "NAME=VALUE"),
    ):
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            shell.run_cell_magic("shoal", line, cell)
        assert stdout.getvalue().startswith("error: ") and error in stdout.getvalue()
