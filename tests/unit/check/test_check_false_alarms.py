"""Ways of other people's scripts that are right, and that the check once called wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from looking import look, rules

HEAD = "import argparse, os, torch\np = argparse.ArgumentParser()\n"
CONFIGURED = (
    "import os, torch\nout_dir = 'out'\nexec(open('configurator.py').read())\n"
    "torch.save({}, os.path.join(out_dir, 'ckpt.pt'))\n"
)
TO_OUTPUT = "--out_dir=/output-checkpoint"


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (CONFIGURED, (TO_OUTPUT,)),
        (CONFIGURED, ("config/train.py", "--out_dir", "/output-checkpoint")),
        (
            HEAD + "p.add_argument('--out_dir', default='out')\na = p.parse_args()\ntorch.save({}, a.out_dir)\n",
            (TO_OUTPUT,),
        ),
        ("import torch\nSAVE = False\nif SAVE:\n    torch.save({}, '/models/m.pt')\n", ()),
        ("import torch\nif False:\n    torch.save({}, '/models/m.pt')\n", ()),
        ("import torch\ndef f(save=False):\n    if save:\n        torch.save({}, '/m.pt')\nf()\n", ()),
        (
            HEAD
            + "p.add_argument('--save', action='store_true')\na = p.parse_args()\nif a.save and 1 > 0:\n    torch.save({}, '/m.pt')\n",
            (),
        ),
        (
            HEAD
            + "p.add_argument('--no-save', action='store_true')\na = p.parse_args()\nif not a.no_save:\n    torch.save({}, '/m.pt')\n",
            ("--no-save",),
        ),
        (
            HEAD
            + "p.add_argument('--save', type=bool, default=False)\na = p.parse_args()\nif a.save:\n    torch.save({}, '/m.pt')\n",
            (),
        ),
        (
            HEAD
            + "p.add_argument('--dry', action='store_false', dest='save')\na = p.parse_args()\nif a.save:\n    torch.save({}, '/m.pt')\n",
            ("--dry",),
        ),
    ],
)
def test_a_save_to_the_output_or_behind_a_flag_that_is_off_is_no_fault(
    tmp_path: Path, text: str, args: tuple[str, ...]
) -> None:
    files = {"train.py": text, "configurator.py": "import sys\n", "config/train.py": ""}
    assert "outside-output" not in rules(look(tmp_path, files, args=args))


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (CONFIGURED, ()),
        (CONFIGURED, ("--out_dir=elsewhere",)),
        ("import torch\nSAVE = True\nif SAVE:\n    torch.save({}, '/models/m.pt')\n", ()),
        ("import torch\nSAVE = False\nif SAVE:\n    pass\nelse:\n    torch.save({}, '/models/m.pt')\n", ()),
        ("import torch\nSAVE = False\nif not SAVE:\n    torch.save({}, '/models/m.pt')\n", ()),
        (
            "import sys, torch\nSAVE = False\nif len(sys.argv) > 1:\n    SAVE = True\nif SAVE:\n    torch.save({}, '/models/m.pt')\n",
            (),
        ),
        (
            "import torch\nSAVE = False\nexec(open('configurator.py').read())\nif SAVE:\n    torch.save({}, '/m.pt')\n",
            ("--SAVE=True",),
        ),
        ("import torch\ndef f(save=False):\n    if save:\n        torch.save({}, '/m.pt')\nf(save=True)\n", ()),
        (
            HEAD
            + "p.add_argument('--save', action='store_true')\na = p.parse_args()\nif a.save:\n    torch.save({}, '/m.pt')\n",
            ("--save",),
        ),
        (
            HEAD
            + "p.add_argument('--save', action='store_true')\na = p.parse_args()\nif a.save or a.other:\n    torch.save({}, '/m.pt')\n",
            ("--save",),
        ),
    ],
)
def test_a_save_that_may_run_is_still_found(tmp_path: Path, text: str, args: tuple[str, ...]) -> None:
    files = {"train.py": text, "configurator.py": "import sys\n"}
    assert "outside-output" in rules(look(tmp_path, files, args=args))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("m.pt", "in the working directory, where only the newest weights are kept"),
        ("out/m.safetensors", "in the working directory, where only the newest weights are kept"),
        ("m.weights", "will be lost"),
        ("/models/m.pt", "will be lost"),
        ("../m.pt", "will be lost"),
    ],
)
def test_what_happens_to_a_checkpoint_is_said_as_it_is(tmp_path: Path, path: str, words: str) -> None:
    (found,) = look(tmp_path, {"train.py": f"import torch\ntorch.save({{}}, '{path}')\n"}).findings
    assert words in found.message


NMP = "from NetmindMixins.Netmind import nmp\nfrom transformers import Trainer, TrainerCallback\nnmp.init()\n"
END = ".train()\nnmp.finish_training()\n"
STEPS = "class Report(TrainerCallback):\n    def on_step_end(self, *a, **k):\n        nmp.step({'loss': 1})\n"


def test_a_callback_of_one_s_own_that_calls_nmp_step_is_one(tmp_path: Path) -> None:
    files = {"train.py": NMP + STEPS + f"Trainer(model=1, callbacks=[Report()]){END}"}
    assert rules(look(tmp_path, files)) == []
    elsewhere = {
        "report.py": "from NetmindMixins.Netmind import nmp\nfrom transformers import TrainerCallback\n" + STEPS,
        "train.py": NMP + f"from report import Report\nTrainer(model=1, callbacks=[Report]){END}",
    }
    assert rules(look(tmp_path, elsewhere)) == []
    silent = {"train.py": NMP + f"class Report(TrainerCallback): ...\nTrainer(model=1, callbacks=[Report()]){END}"}
    assert rules(look(tmp_path, silent)) == ["netmind-no-callback"]


LOOP = """import torch
from NetmindMixins.Netmind import nmp
nmp.init()
nmp.init_train_bar(max_steps=3)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
def train(report):
    for x in torch.ones(3, 1):
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report({"loss": loss.item()})
train(REPORT)
nmp.finish_training()
"""


def test_nmp_step_handed_over_as_a_callback_is_a_call(tmp_path: Path) -> None:
    assert rules(look(tmp_path, {"train.py": LOOP.replace("REPORT", "nmp.step")})) == []
    assert rules(look(tmp_path, {"train.py": LOOP.replace("REPORT", "print")})) == ["netmind-no-step"]
