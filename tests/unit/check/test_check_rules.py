"""Code that resembles a mistake but is none: the check is silent. Mistakes that a simpler check would miss are found."""

from __future__ import annotations

import cProfile
import pstats
from pathlib import Path

import pytest
from looking import look, rules
from planted import DDP, NETMIND, PLAIN, SDK, TWO

from shoal.check.module import Module


def test_faults_are_found_in_the_modules_a_script_imports_and_not_in_others(tmp_path: Path) -> None:
    files = {
        "train.py": "from lib.model import go\nimport lib.more as more\ngo()\n",
        "lib/__init__.py": "",
        "lib/model.py": "from .deep import ask\ndef go():\n    ask()\n",
        "lib/deep.py": "def ask():\n    return input()\n",
        "lib/more.py": "import getpass as g\nword = g.getpass()\n",
        "unused.py": "input()\n",
    }
    view = look(tmp_path, files)
    assert {f.path for f in view.findings} == {"lib/deep.py", "lib/more.py"}
    assert view.files == 5


def test_where_code_cannot_be_seen_nothing_is_missing(tmp_path: Path) -> None:
    text = SDK.replace("            run.step(loss=loss)\n", "")
    assert rules(look(tmp_path, {"train.py": text}, **TWO)) == ["sdk-no-step"]
    given_away = text.replace(
        "            optimizer.step()\n", "            optimizer.step()\n            library.told(run, loss)\n"
    )
    assert rules(look(tmp_path, {"train.py": given_away}, **TWO)) == []
    assert rules(look(tmp_path, {"train.py": "import importlib\n" + text}, **TWO)) == []
    large = {"train.py": "import large\n" + text, "large.py": f"x = '{'a' * (1 << 20)}'\n"}
    assert rules(look(tmp_path, large, **TWO)) == []


def test_the_lines_of_the_readme_have_no_finding(tmp_path: Path) -> None:
    """`run.loop` saves at its last step, so the run needs no `finish` for its last checkpoint."""
    text = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import shoal
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.ones(64, 4), torch.ones(64, 1)), batch_size=8, shuffle=True)
run = shoal.init(checkpoint_every=500)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for x, y in run.loop(loader, epochs=3):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    run.step(loss=loss)
"""
    assert look(tmp_path, {"train.py": text}, **TWO).findings == []


def test_a_folder_without_a_likely_script_is_looked_at_whole(tmp_path: Path) -> None:
    view = look(tmp_path, {"a.py": "import c\ninput()\n", "b.py": "input()\n", "c.py": "input()\n"}, None)
    assert [f.path for f in view.findings] == ["a.py", "b.py", "c.py"]


@pytest.mark.parametrize(
    "comment", ["# shoal: ignore[asks-for-input]", "# shoal: ignore", "# noqa  # shoal:ignore[secret, asks-for-input]"]
)
def test_a_comment_keeps_a_rule_off_its_line(comment: str, tmp_path: Path) -> None:
    assert look(tmp_path, {"train.py": f"input()  {comment}\n"}).findings == []
    assert look(tmp_path, {"train.py": f"{comment}\ninput()\n"}).findings == []
    assert rules(look(tmp_path, {"train.py": f"x = '{comment}'; input()\n"})) == ["asks-for-input"]


def test_a_comment_for_another_rule_changes_nothing(tmp_path: Path) -> None:
    assert rules(look(tmp_path, {"train.py": "input()  # shoal: ignore[secret]\n"})) == ["asks-for-input"]


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    input()\nexcept EOFError:\n    pass\n",
        "import sys\nif sys.stdin.isatty():\n    input()\n",
        "def input(x): ...\ninput('x')\n",
        "import os\nDATA = '/Users/ada/data' if os.path.exists('/Users/ada/data') else 'data'\n",
        "import os\nDATA = '/Users/ada/data'\nif not os.path.isdir(DATA):\n    DATA = '.'\n",
        '"""Run it as: train.py /Users/ada/data"""\n',
        "import argparse\nargparse.ArgumentParser(description='see /Users/ada/x')\n",
        "import torch, io\nb = io.BytesIO()\ntorch.save({}, b)\n",
        "import torch, sys\ntorch.save({}, sys.argv[1] + '/m.pt')\n",
        "import torch\ntorch.save({}, '/output-checkpoint/m.pt')\ntorch.save({}, '/tmp/m.pt')\n",
        "open('x.txt', 'w').write('1')\nopen('x.txt').read()\n",
        "import torch, urllib.request\nurllib.request.urlretrieve('https://a.b/x', 'x.pt')\ntorch.load('x.pt')\n",
        "import torch\ntorch.load('/input/a', map_location={'cuda:0': 'cpu'})\n".replace("/input/a", "/tmp/a"),
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--device', default='cuda:1')\n",
        "import argparse, torch\np = argparse.ArgumentParser()\np.add_argument('--save', action='store_true')\n"
        "args = p.parse_args()\nif args.save:\n    torch.save({}, 'm.pt')\n",
        "from transformers import TrainingArguments\nTrainingArguments('out', save_strategy='no')\n",
        PLAIN.replace("import torch", "import torch, shoal, os, dist")
        + "with shoal.init() as run:\n    run.evaluate(loss=loss)\n    os.environ['LOCAL_RANK']\n",
        "try:\n    open('x.txt')\nexcept OSError:\n    pass\n",
        "from pathlib import Path\nif Path('x.txt').exists():\n    Path('x.txt').read_text()\n",
        "pad_token_id = 'aB3dE5fG7hI9jK1lM3nO5pQ7r'\n",
        "token = 'your-token-goes-here-123'\npassword = 'correct horse battery staple'\n",
        "model_name = 'microsoft/deberta-v3-base-2021'\nsecret_name = 'wandb'\n",
    ],
)
def test_what_only_looks_like_a_fault_is_none(text: str, tmp_path: Path) -> None:
    assert look(tmp_path, {"train.py": text}, nodes=2, datasets=frozenset(), args=()).findings == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("import torch as t\nfrom pathlib import Path\nD = Path('out')\nt.save({}, D / 'm.pt')\n", "outside-output"),
        ("from torch import save as keep\nkeep({}, 'm.pt')\n", "outside-output"),
        ("from transformers import TrainingArguments as A\nA(output_dir='out')\n", "outside-output"),
        ("NAME = 'words'\nopen(f'{NAME}.txt')\n", "missing-file"),
        ("import pandas as pd\npd.read_csv('data/x.csv')\n", "missing-file"),
        ("import builtins as b\nb.input()\n", "asks-for-input"),
        ("import cv2 as c\nc.imshow('x', 1)\n", "opens-window"),
        ("import matplotlib as m\nm.use('TkAgg')\n", "opens-window"),
        (
            "import wandb\nwandb.login(key='1234abcd9876fe5432ba0987cd65ef4321098bad')\n".replace("key=", "api_key="),
            "secret",
        ),
        ("K = '-----BEGIN RSA PRIVATE KEY-----\\nMIIE'\n", "secret"),
        ("class A:\n    root = 'C:\\\\Users\\\\ada\\\\data'\n", "local-path"),
        ("import torch\ntorch.cuda.set_device(1)\n", "fixed-device"),
    ],
)
def test_a_fault_behind_an_alias_is_found(text: str, rule: str, tmp_path: Path) -> None:
    assert rules(look(tmp_path, {"train.py": text}, nodes=2)) == [rule]


def test_a_file_left_out_by_gitignore_is_told_apart(tmp_path: Path) -> None:
    files = {
        ".gitignore": "words.txt\nlocal.py\n",
        "words.txt": "a",
        "local.py": "",
        "train.py": "import local\nopen('words.txt')\n",
    }
    found = look(tmp_path, files).findings
    assert [f.rule for f in found] == ["missing-file", "missing-file"]
    assert all("gitignore" in f.message for f in found)


def test_a_barrier_the_others_meet_in_a_branch_of_their_own_is_fine(tmp_path: Path) -> None:
    both = (
        "    if rank != 0:\n        dist.barrier()\n    if rank == 0:\n        print(epoch)\n        dist.barrier()\n"
    )
    text = DDP.replace("    evaluate(net)\n    dist.barrier()\n", both)
    assert look(tmp_path, {"train.py": text}, **TWO).findings == []


def test_an_evaluation_with_a_timeout_of_its_own_is_fine(tmp_path: Path) -> None:
    text = DDP.replace("    evaluate(net)\n", "    if rank == 0:\n        evaluate(net)\n")
    text = text.replace('init_process_group("gloo")', 'init_process_group("gloo", timeout=timedelta(hours=5))')
    assert look(tmp_path, {"train.py": text}, **TWO).findings == []


def test_a_trainer_for_netmind_needs_its_callback(tmp_path: Path) -> None:
    text = (
        "from NetmindMixins.Netmind import nmp, NetmindTrainerCallback\nfrom transformers import Trainer\nnmp.init()\n"
    )
    end = ".train()\nnmp.finish_training()\n"
    assert rules(look(tmp_path, {"train.py": text + f"Trainer(model=1){end}"})) == ["netmind-no-callback"]
    own = "class Mine(NetmindTrainerCallback): ...\nclass T(Trainer): ...\n"
    assert rules(look(tmp_path, {"train.py": text + own + f"T(model=1, callbacks=[Mine]){end}"})) == []
    assert rules(look(tmp_path, {"train.py": text + own + f"T(model=1, callbacks=[]){end}"})) == ["netmind-no-callback"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--l", "1"), None),
        (("--lr=-3",), None),
        (("--lrr", "1"), "Did you mean '--lr'?"),
        (("-z",), "-z"),
        (("--help",), None),
        (("word",), None),
    ],
)
def test_words_are_matched_as_argparse_does(args: tuple[str, ...], message: str | None, tmp_path: Path) -> None:
    found = look(tmp_path, {"train.py": SDK}, **TWO | {"args": args}).findings
    assert (message in found[0].message) if message else not found


def test_a_required_argument_that_is_missing_is_found(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--steps', type=int, required=True)\np.parse_args()\n"
    assert rules(look(tmp_path, {"train.py": text}, args=())) == ["unknown-argument"]
    assert rules(look(tmp_path, {"train.py": text}, args=("--steps", "3"))) == []
    assert rules(look(tmp_path, {"train.py": text}, args=None)) == []


def test_options_added_elsewhere_or_in_pairs_are_taken(tmp_path: Path) -> None:
    start, end = "import argparse\np = argparse.ArgumentParser()\n", "p.parse_args()\n"
    asked = {"args": ("--no-x", "--y")}
    pair = "p.add_argument('--x', action=argparse.BooleanOptionalAction)\n"
    own = "def more(q):\n    q.add_argument('--y')\nmore(p)\n"
    assert rules(look(tmp_path, {"train.py": start + pair + own + end}, **asked)) == []
    assert rules(look(tmp_path, {"train.py": start + own + end}, **asked)) == ["unknown-argument"]
    theirs = "import library\nlibrary.add_options(p)\n"
    assert rules(look(tmp_path, {"train.py": start + own + theirs + end}, **asked)) == []


def test_a_default_path_that_the_command_line_overrides_is_fine(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--d', default='/Users/ada/x')\np.parse_args()\n"
    assert rules(look(tmp_path, {"train.py": text}, args=())) == ["local-path"]
    assert rules(look(tmp_path, {"train.py": text}, args=("--d", "/input/x"))) == []


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        (PLAIN, "PyTorch loop"),
        (SDK, "Shoal SDK"),
        (NETMIND, "NetMind"),
        ("from shoal.train import Trainer\n", "Shoal Trainer"),
        ("import topspin.tools\n", "TopSpin"),
        ("from transformers import Trainer\nclass T(Trainer): ...\nT()\n", "Hugging Face Trainer"),
        ("import accelerate as a\na.Accelerator()\n", "Accelerate"),
        ("import pytorch_lightning as pl\npl.Trainer()\n", "Lightning"),
        ("from lightning.fabric import Fabric\nFabric()\n", "Lightning Fabric"),
    ],
)
def test_the_framework_is_known(text: str, framework: str, tmp_path: Path) -> None:
    assert look(tmp_path, {"train.py": text}).frameworks == [framework]


def test_the_work_grows_with_the_text_and_not_faster(tmp_path: Path) -> None:
    def work(copies: int) -> int:
        body = SDK.partition("def main")[0] + "".join(
            f"def f{i}(x):\n    x = x.view(1)\n    return f{i}(x)\n" for i in range(copies)
        )
        profile = cProfile.Profile()
        profile.runcall(look, tmp_path, {"train.py": body})
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    work(1)
    assert work(400) < 5 * work(100)


def test_positions_count_characters_not_bytes(tmp_path: Path) -> None:
    [finding] = look(tmp_path, {"train.py": "x = 'äöü'; input()\n"}).findings
    assert (finding.line, finding.column, finding.length) == (1, 12, 7)


def test_no_text_makes_it_fail(tmp_path: Path) -> None:
    for text in (
        "",
        "\x00",
        "def",
        "x = " + "(" * 500,
        "class A(A): ...\nA()\n",
        "x = x = x\n",
        "def f(x=f): f(f)\nf()\n",
    ):
        look(tmp_path, {"train.py": text}, nodes=2, args=("--x",), datasets=frozenset())
    assert Module("a.py", "").lines == []
