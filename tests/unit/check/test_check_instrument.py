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
    """Return the added lines; no line may be removed."""
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
        (PLAIN.replace("loss.backward()", "torch.ones(1).backward()"), "not a variable"),
        (SDK, "already instrumented (Shoal SDK)"),
        (NETMIND, "already instrumented (NetMind)"),
        (
            "import torch\ndef f(opt):\n    for x in y:\n        loss = x()\n        loss.backward()\n        opt.step()\n",
            "not a script",
        ),
        ("from transformers import Trainer\nTrainer(**options)\n", "yourself"),
    ],
)
def test_what_has_no_sure_place_is_refused_with_the_reason(text: str, word: str) -> None:
    with pytest.raises(Refused) as refused:
        instrument("train.py", text)
    assert word in f"{refused.value.message} {refused.value.hint}" and refused.value.hint


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (PLAIN.replace("    loss.backward()\n    optimizer.step()", "    loss.backward(); optimizer.step(); print(1)"),
         ["    loss.backward(); optimizer.step(); run.step(loss=loss); print(1)", "run.finish()"]),
        (PLAIN.replace("    loss.backward()\n    optimizer.step()", "    loss.backward(); optimizer.step();  # done"),
         ["    loss.backward(); optimizer.step(); run.step(loss=loss);  # done", "run.finish()"]),
        ("import torch; model = torch.nn.Linear(1, 1); opt = torch.optim.SGD(model.parameters(), lr=1)\n"
         "for x in xs: loss = model(x); loss.backward(); opt.step()\n",
         ["import torch; import shoal; model = torch.nn.Linear(1, 1); opt = torch.optim.SGD(model.parameters(), lr=1)",
          "for x in xs: loss = model(x); loss.backward(); opt.step(); run.step(loss=loss)", "run.finish()"]),
        ("import torch\ndef train(model, opt):\n    for x in xs():\n        loss = model(x); loss.backward(); opt.step()\n"
         "model = torch.nn.Linear(1, 1); opt = torch.optim.SGD(model.parameters(), lr=1); train(model, opt); print('é')\n",
         ["        loss = model(x); loss.backward(); opt.step(); run.step(loss=loss)",
          'model = torch.nn.Linear(1, 1); opt = torch.optim.SGD(model.parameters(), lr=1); '
          'run = shoal.init(parallel="none"); train(model, opt); print(\'é\'); run.finish()']),
    ],
)  # fmt: skip
def test_several_statements_on_one_line_stay_there_with_ours_between(text: str, lines: list[str]) -> None:
    done = instrument("train.py", text).text
    assert set(lines) <= set(done.splitlines()), done


def test_an_accumulated_step_on_a_shared_line_is_reported_when_the_gradients_are_complete() -> None:
    text = """import torch
from accelerate import Accelerator
accelerator = Accelerator()
model, opt = accelerator.prepare(torch.nn.Linear(1, 1), torch.optim.SGD([], lr=1))
for x in xs:
    with accelerator.accumulate(model):
        loss = model(x); accelerator.backward(loss); opt.step(); opt.zero_grad()
"""
    assert (
        "opt.step(); accelerator.sync_gradients and run.step(loss=loss); opt.zero_grad()"
        in instrument("train.py", text).text
    )


def test_a_file_python_cannot_read_is_refused() -> None:
    with pytest.raises(UsageError, match="line 1"):
        instrument("train.py", "def\n")


MICRO = """import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulate = 4
for step in range(20):
    for micro in range(accumulate):
        loss = model(torch.ones(4, 2)).sum() / accumulate
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
EVERY_FOURTH = """import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.ones(64, 2), batch_size=4)
for i, x in enumerate(loader):
    loss = model(x).sum()
    loss = loss / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_loop_of_parts_around_backward_is_told_once_per_optimizer_step_with_the_whole_loss() -> None:
    done = instrument("train.py", MICRO).text
    assert "    optimizer.step()\n    run.step(loss=loss * accumulate)\n    optimizer.zero_grad()\n" in done


def test_accumulation_by_a_counter_is_told_with_the_whole_loss() -> None:
    assert added(EVERY_FOURTH) == [
        "import shoal",
        "run = shoal.init()",
        "model, optimizer, loader = run.prepare(model, optimizer, loader)",
        "        run.step(loss=loss * 4)",
        "run.finish()",
    ]
    shrunk = EVERY_FOURTH.replace("    loss = loss / 4\n", "    loss /= 4\n")
    assert "        run.step(loss=loss * 4)" in added(shrunk)
    mean = EVERY_FOURTH.replace("    loss = loss / 4\n", "    loss = loss / len(x)\n")
    assert "        run.step(loss=loss)" in added(mean)


@pytest.mark.parametrize(
    "start",
    [
        "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(main, args=(2,), nprocs=2)\n",
        "from torch.multiprocessing import spawn\nif __name__ == '__main__':\n    spawn(main, nprocs=2)\n",
        "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.Process(target=main, args=(0,)).start()\n",
    ],
)
def test_a_script_that_starts_its_own_workers_is_refused_with_that_reason(start: str) -> None:
    text = WITH_DDP.replace("def main():", "def main(rank):").replace("main()\n", start)
    with pytest.raises(Refused) as refused:
        instrument("train.py", text)
    assert "starts its own workers" in refused.value.message and "line" in refused.value.message
    assert "--accels" in (refused.value.hint or "")


def test_processes_for_something_else_are_no_reason_to_refuse() -> None:
    other = "import multiprocessing\ndef watch(): ...\nmultiprocessing.Process(target=watch).start()\n"
    assert "run.finish()" in instrument("train.py", PLAIN + other).text
