"""Tables as people see them, on terminals of 80 and 60 columns: no line too long, no word folded, no ids unless asked for."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import wireviews as views
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from stubserver import Stub, reply
from test_cli_checkpoint import checkpoint
from test_cli_dataset import VIEW as DATASET
from test_cli_machine import lease
from test_cli_people import KEY
from test_cli_pool import PROBLEM, machine
from test_cli_sweep import sweep

from shoal.cli.main import main
from shoal.cli.shared.output import Output
from shoal.cli.shared.tables import Column, fit

W = "/workspaces/default"
JOBS = [
    views.job(
        "running", name="llama-finetune-lora-r16", nodes=4, accels=8, attempts=3, ended_at="2025-01-31T14:07:00Z"
    ),
    views.job("failed", name="hello", progress=None),
]
CHECKPOINTS = [
    checkpoint(name="checkpoint-1500", step=1500, train_loss=0.51234, eval_loss=0.6, model="LlamaForCausalLM", version="4.57"),
    checkpoint(name="checkpoint-2000", step=2000, train_loss=0.42, eval_loss=None, model="LlamaForCausalLM", version="4.57"),
]  # fmt: skip
MACHINES = {
    "machines": [
        {"name": "local", "kind": "cpu", "slots_total": 4, "slots_free": 0, "state": "up"},
        {"name": "gpu-server-01.example.org", "kind": "cuda", "slots_total": 8, "slots_free": 2, "state": "down",
         "problems": ["has not been heard of for 3 min; its agent may have been stopped, or the network is cut"]},
    ]
}  # fmt: skip
WORKSPACES = [
    {"id": "ws_1", "name": "default", "role": "owner", "jobs": 12, "datasets": 3, "created_at": views.CREATED},
    {"id": "ws_2", "name": "vision-transformers", "role": "member", "jobs": 1, "datasets": 0, "created_at": views.CREATED},
]  # fmt: skip

LEASES = [lease(command="ssh -p 2222 gpu-box-1@shoal.example.org")]

SCREENS: dict[str, tuple[str, Any]] = {
    "training list": (f"{W}/jobs", JOBS),
    "training checkpoints hello": (f"{W}/checkpoints", CHECKPOINTS),
    "checkpoint list": (f"{W}/checkpoints", CHECKPOINTS),
    "dataset list": (f"{W}/datasets", [DATASET | {"name": "gpt2-tokenized-wikitext", "created_by": "ada.lovelace@example.org"}]),
    "machine list": ("/machines", MACHINES),
    "pool list": ("/pool", [machine("gpu-server-01", state="lost", problems=[PROBLEM]), machine("gpu2")]),
    "key list": ("/keys", [KEY | {"name": "laptop"}]),
    "workspace list": ("/workspaces", WORKSPACES),
    "sweep list": (f"{W}/sweeps", [sweep("running")]),
    "billing usage": (f"{W}/billing/usage", None),
}  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Screen = Callable[..., str]


@pytest.fixture
def screen(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Screen:
    def show(command: str, columns: int, *more: str) -> str:
        path, body = SCREENS[command]
        if body is None:
            from test_cli_billing import USAGE as body
        stub.routes = {f"GET {W}/leases": reply(body=LEASES), f"GET {path}": reply(body=body)}
        made, talk = Terminal(), Terminal()
        for name, value in (("COLUMNS", str(columns)), ("TERM", "xterm"), ("NO_COLOR", "1")):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdout", made)
        monkeypatch.setattr(sys, "stderr", talk)
        assert main([*command.split(), *more]) == 0, talk.getvalue()
        return re.sub(r"\x1b\[[0-9;]*m", "", made.getvalue())

    return show


GOLDEN = {
    "training list": """\
NAME                     STATUS   PROGRESS  NODES  ACCELS  RAN FOR    CREATED
llama-finetune-lora-r16  running       40%      4       8  2 h 6 min  2025-01-31
hello                    failed          –      1       1  1 min 4 s  2025-01-31
""",
    "training checkpoints hello": """\
NAME             NODE  STEP  TRAIN LOSS  EVAL LOSS  INFERENCE READY  TIMESTAMP
checkpoint-1500     0  1500      0.5123        0.6  yes              2025-01-31
checkpoint-2000     0  2000        0.42          –  yes              2025-01-31
""",
    "dataset list": """\
NAME                     VERSION  STATUS     FILES  SIZE  CREATED
gpt2-tokenized-wikitext        1  available      1   5 B  2025-01-31
""",
    "machine list": """\
NAME                       KIND  SLOTS  FREE  STATE  PROBLEMS
local                      cpu       4     0  up     –
gpu-server-01.example.org  cuda      8     2  down   has not been heard of for 3
                                                     min; its agent may have
                                                     been stopped, or the
                                                     network is cut

LEASE  STATUS   MACHINE  SLOTS  ENDS  SSH
box    running  –            1  –     ssh box-7f3k@gpu.example.org -p 40022
""",
    "pool list": """\
NAME           STATE  KIND  SLOTS  FREE  PROBLEMS
gpu-server-01  lost   cuda      4     4  its clock is 10 s behind the server's
gpu2           up     cuda      4     4  –
""",
    "key list": """\
NAME    KEY    SCOPES            CREATED     LAST USED  EXPIRES  REVOKED
laptop  …abcd  read,write,admin  2025-01-31  –          –        –
""",
    "workspace list": """\
   NAME                 YOUR ROLE  JOBS  DATASETS  CREATED
*  default              owner        12         3  2025-01-31
   vision-transformers  member        1         0  2025-01-31
""",
    "sweep list": """\
NAME  STATUS   SEARCH  TRIALS                   BEST  WITH      CREATED
wide  running  grid    2 of 2, 1 min 30 s left  0.25  lr=0.002  2025-01-31
""",
    "billing usage": """\
JOB    SLOT-HOURS      COST
hello      1.5000  1.80 EUR
""",
}


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("command", SCREENS)
def test_a_table_fits_the_terminal_and_folds_no_word(screen: Screen, command: str, columns: int) -> None:
    text = screen(command, columns)
    assert all(cell_len(line) <= columns for line in text.splitlines()), text
    whole = {word for line in screen(command, 400, "--wide").splitlines() for word in line.split()}
    assert {word for line in text.splitlines() for word in line.split()} <= whole, text
    assert views.ID not in text and "ckpt_" not in text


@pytest.mark.parametrize("command", GOLDEN)
def test_the_commonest_tables_at_80_columns(screen: Screen, command: str) -> None:
    assert [line.rstrip() for line in screen(command, 80).splitlines()] == GOLDEN[command].splitlines()


def test_wide_shows_every_column_with_ids_whatever_the_terminal(screen: Screen) -> None:
    header, first, _ = screen("training list", 60, "--wide").splitlines()
    assert header.split() == "NAME STATUS PROGRESS NODES ACCELS ATTEMPTS RAN FOR CREATED ID".split()
    assert first.split()[-1] == views.ID


def test_what_is_left_out_is_named_with_the_way_to_see_it(screen: Screen) -> None:
    screen("training list", 60)
    assert "Not shown: nodes, accels, attempts, created. All columns: --wide" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_a_pipe_gets_all_columns_however_narrow(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.routes = {f"GET {W}/jobs": reply(body=JOBS)}
    assert main(["training", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[-1] == "ID"


TEXTS = st.text("abcdefgh ", max_size=30)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), TEXTS), min_size=1, max_size=8), st.integers(20, 120))
def test_columns_go_by_rank_and_only_for_want_of_room(made: list[tuple[int, bool, str]], width: int) -> None:
    columns = [Column(f"C{n}", lambda r: r, rank=rank, is_text=is_text) for n, (rank, is_text, _) in enumerate(made)]
    cells = [[text.strip() or "–" for _, _, text in made]]
    found = fit(columns, cells, width)
    assert sorted(found.shown + found.left_out) == list(range(len(columns)))
    assert all(columns[i].rank > 0 for i in found.left_out)
    assert not found.left_out or found.fits or all(columns[i].rank == 0 for i in found.shown)
    filled = [i for i in found.left_out if cells[0][i] != "–"]
    spare = [i for i in found.shown if columns[i].rank > 0]
    assert all(columns[i].rank <= columns[j].rank for i in spare for j in filled)


def test_a_name_wider_than_the_terminal_is_folded_and_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    name = "a-very-long-name-" * 4
    Output().table([name], [Column("NAME", lambda r: r), Column("WHEN", lambda r: "now", rank=1)])
    assert name in made.getvalue().replace("\n", "").replace(" ", "")
