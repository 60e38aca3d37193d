"""`shoal instrument` on text: minimal, the rest untouched, and refused where there is no sure place."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from planted import NETMIND, PLAIN, SDK

from shoal.check.instrument.writer import instrument
from shoal.core.errors import Refused, UsageError

PLAIN_SCRIPTS = Path(__file__).resolve().parents[2] / "integration" / "plain"
WITH_DDP = """import torch
from torch.nn.parallel import DistributedDataParallel as DDP
def main():
    model = DDP(torch.nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1)
    for batch in batches():
        loss = model(batch).mean()
        (loss / 4).backward()
        opt.step()
    return model
main()
"""


def added(text: str) -> list[str]:
    """What is new; nothing may be gone."""
    done = instrument("train.py", text).text
    changes = [line for line in difflib.ndiff(text.splitlines(), done.splitlines()) if line[:2] in ("+ ", "- ")]
    assert not [line for line in changes if line.startswith("- ")], changes
    return [line[2:] for line in changes]


def test_a_loop_in_functions_gets_five_lines() -> None:
    assert added((PLAIN_SCRIPTS / "custom_loop.py").read_text()) == [
        "import shoal",
        "        run.step(loss=loss)",
        "    model, optimizer, train_loader, scheduler = run.prepare(model, optimizer, train_loader, scheduler)",
        "    run = shoal.init()",
        "    run.finish()",
    ]


def test_a_loop_at_the_top_without_a_loader_is_told_in_four_lines() -> None:
    assert added(PLAIN) == [
        "import shoal",
        'run = shoal.init(parallel="none")',
        "    run.step(loss=loss)",
        "run.finish()",
    ]
    assert "no checkpoints" in instrument("train.py", PLAIN).notes[0]


def test_a_model_that_is_wrapped_already_is_not_prepared() -> None:
    assert added(WITH_DDP) == [
        "import shoal",
        '    run = shoal.init(parallel="none")',
        "        run.step(loss=loss)",
        "    run.finish()",
    ]


def test_a_trainer_class_is_told_where_the_script_starts_it() -> None:
    text = """import torch
class Teacher:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=1)
    def lesson(self, batches):
        for batch in batches:
            loss = self.model(batch).sum()
            loss.backward()
            self.optimizer.step()
def school():
    Teacher(torch.nn.Linear(1, 1)).lesson(torch.ones(3, 1))
torch.manual_seed(0)
school()
print("over")
"""
    lines = instrument("train.py", text).text.splitlines()
    assert lines[lines.index("school()") - 1] == 'run = shoal.init(parallel="none")'
    assert lines[-1] == "run.finish()"


def test_accelerate_is_told_once_per_optimizer_step() -> None:
    assert added((PLAIN_SCRIPTS / "accelerate_loop.py").read_text()) == [
        "import shoal",
        '    run = shoal.init(parallel="none")',
        "                if accelerator.sync_gradients:",
        "                    run.step(loss=loss)",
        "    run.finish()",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Trainer(model)", "Trainer(model, callbacks=[ShoalCallback])"),
        ("Trainer()", "Trainer(callbacks=[ShoalCallback])"),
        ("Trainer(\n    model=m,\n)", "Trainer(\n    model=m,\n    callbacks=[ShoalCallback],\n)"),
        ("Trainer(\n    model=m\n)", "Trainer(\n    model=m,\n    callbacks=[ShoalCallback]\n)"),
        ("Trainer(m, callbacks=[A()])", "Trainer(m, callbacks=[A(), ShoalCallback])"),
        ("Trainer(m, callbacks=[])", "Trainer(m, callbacks=[ShoalCallback])"),
        ("Trainer(m, callbacks=None)", "Trainer(m, callbacks=[ShoalCallback])"),
        ("Trainer(m, callbacks=mine)", "Trainer(m, callbacks=[*(mine or []), ShoalCallback])"),
    ],
)
def test_a_callback_joins_those_that_are_there(before: str, after: str) -> None:
    done = instrument("train.py", f"from transformers import Trainer\n{before}  # kept\n").text
    assert (
        done == f"from transformers import Trainer\nfrom shoal.integrations.hf import ShoalCallback\n{after}  # kept\n"
    )


def test_line_ends_tabs_and_a_missing_newline_at_the_end_stay() -> None:
    done = instrument("train.py", WITH_DDP.replace("    ", "\t").replace("\n", "\r\n").rstrip()).text
    assert "\t\trun.step(loss=loss)\r\n" in done
    assert "\n" not in done.replace("\r\n", "")
    assert done.endswith("main()\r\n")


def test_a_name_that_is_taken_is_left_alone() -> None:
    done = instrument("train.py", PLAIN + "\nrun = 1\n").text
    assert 'shoal_run = shoal.init(parallel="none")' in done and "shoal_run.step(loss=loss)" in done


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("print('hello')\n", "no training loop"),
        ("import torch\nfor x in y:\n    loss = f(x)\n    loss.backward()\n", "no optimizer"),
        (PLAIN + PLAIN, "2 training loops"),
        (PLAIN.replace("loss.backward()", "torch.ones(1).backward()"), "no name"),
        (PLAIN.replace("    optimizer.step()", "    optimizer.step(); print(1)"), "several statements"),
        (SDK, "instrumented already (Shoal SDK)"),
        (NETMIND, "instrumented already (NetMind)"),
        (
            "import torch\ndef f(opt):\n    for x in y:\n        loss = x()\n        loss.backward()\n        opt.step()\n",
            "not a script",
        ),
        ("from transformers import Trainer\nTrainer(**options)\n", "by hand"),
    ],
)
def test_what_has_no_sure_place_is_refused_with_the_reason(text: str, word: str) -> None:
    with pytest.raises(Refused) as refused:
        instrument("train.py", text)
    assert word in f"{refused.value.message} {refused.value.hint}" and refused.value.hint


def test_a_file_python_cannot_read_is_refused() -> None:
    with pytest.raises(UsageError, match="line 1"):
        instrument("train.py", "def\n")
