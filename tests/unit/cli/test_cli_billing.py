"""`shoal billing`, `training quote` and `--budget`, against a scripted server: what is sent, what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply

W = "/workspaces/default"
ROW = {"key": "hello", "id": views.ID, "jobs": 1, "slot_seconds": 5400.0, "cost": 1.8, "currency": "EUR"}
USAGE = {"by": "job", "since": None, "until": None, "rows": [ROW], "slot_seconds": 5400.0, "costs": {"EUR": 1.8}}
PRICES = {"currency": "EUR", "prices": {"cpu": 0.0, "cuda": 1.2, "rocm": 0.0, "xpu": 0.0}}
HEAD = "5d" * 32
SIZE = {"nodes": 1, "accels": 1, "slots": 1, "basis": "measured", "low_s": 600.0, "high_s": 720.0, "cost_low": 0.2,
        "cost_high": 0.24, "jobs": 2}  # fmt: skip
QUOTE = {
    "rows": [SIZE, SIZE | {"accels": 2, "slots": 2, "basis": "bound", "low_s": 300.0, "high_s": None, "cost_high": None}],
    "rests_on": ["first", "second"], "said": ["bound: no similar job ran at that size"], "steps": 100, "currency": "EUR",
    "price": 1.2,
}  # fmt: skip


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub: Stub) -> Stub:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    source = {"id": "src_1", "manifest_id": "m", "size": 15, "files": 1, "missing": []}
    stub.routes = {
        f"POST {W}/store/missing": reply(body={"missing": []}),
        f"POST {W}/sources": reply(201, source),
        f"POST {W}/quotes": reply(body=QUOTE),
        f"POST {W}/jobs": reply(body=views.job("queued")),
        "GET /billing/prices": reply(body=PRICES),
    }
    return stub


def sent(stub: Stub, route: str) -> Any:
    method, path = route.split()
    return next(a.json for a in reversed(stub.asked) if a.method == method and a.path.endswith(path))


def test_usage_is_a_table_csv_or_json_with_its_sums(stub: Stub, cli: Cli) -> None:
    stub.routes = {f"GET {W}/billing/usage": reply(body=USAGE)}
    ran = cli("billing", "usage", "--since", "7d")
    assert ran.out.splitlines()[1].split() == ["hello", "1.5000", "1.80", "EUR"]
    assert "Total: 1.5000 slot-hours, 1.80 EUR." in ran.err
    assert "by=job" in stub.asked[-1].path and "since=" in stub.asked[-1].path
    assert cli("billing", "usage", "--csv").out.splitlines() == [
        "job,id,jobs,slot_seconds,cost,currency",
        f"hello,{views.ID},1,5400.0,1.8,EUR",
    ]
    assert json.loads(cli("billing", "usage", "--json").out)["costs"] == {"EUR": 1.8}


def test_usage_of_ones_workspaces_and_of_everyone_is_asked_for_where_it_is(stub: Stub, cli: Cli) -> None:
    wide = reply(body=USAGE | {"by": "workspace", "costs": {}})
    stub.routes = {"GET /billing/usage": wide, "GET /admin/billing/usage": wide}
    for options in (["--everywhere"], ["--by", "workspace"], ["--everyone"]):
        ran = cli("billing", "usage", *options)
        assert ran.code == 0 and "COST" not in ran.out
        assert "by=workspace" in stub.asked[-1].path
    assert stub.asked[-1].path.startswith("/api/v1/admin/")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["usage", "--since", "soon"], "--since 5m"),
        (["usage", "--until", "soon"], "--until 5m"),
        (["usage", "--since", "1h", "--until", "2h"], "must be earlier"),
        (["usage", "--everywhere", "--everyone"], "already"),
        (["price", "tpu", "1"], "cpu, cuda, rocm, xpu"),
        (["price", "H100"], "shoal billing price H100 1.20"),
        (["price", "cuda", "--remove"], "shoal billing price H100 --remove"),
        (["price", "cuda"], "shoal billing price cuda 1.20"),
        (["price", "cuda", "1", "--currency", "euro"], "three capital letters"),
    ],
)
def test_nonsense_is_refused_before_anything_is_asked(stub: Stub, cli: Cli, options: list[str], told: str) -> None:
    ran = cli("billing", *options)
    assert ran.code == 2 and told in ran.err
    assert stub.asked == []


def test_verify_prints_the_head_or_names_what_was_changed(stub: Stub, cli: Cli) -> None:
    whole = {"entries": 812, "whole": True, "seq": 812, "head": HEAD, "problems": []}
    stub.routes = {f"GET {W}/billing/verify": reply(body=whole)}
    ran = cli("billing", "verify")
    assert ran.code == 0 and ran.out == f"812:{HEAD}\n" and "812 entries verified" in ran.err
    problem = {"seq": 7, "job": "hello", "what": "its contents do not match its hash"}
    stub.routes = {"GET /admin/billing/verify": reply(body=whole | {"whole": False, "problems": [problem]})}
    ran = cli("billing", "verify", "--everything", "--head", f"812:{HEAD}")
    assert ran.code == 1 and ran.out == "entry 7 (job 'hello'): its contents do not match its hash\n"
    assert HEAD in stub.asked[-1].path


def test_a_price_is_shown_and_set(stub: Stub, cli: Cli) -> None:
    stub.routes = {"GET /billing/prices": reply(body=PRICES), "PATCH /admin/limits": reply(403, {"error": {}})}
    assert cli("billing", "price").out.splitlines()[2].split() == ["cuda", "1.20", "EUR"]
    assert cli("billing", "price", "cuda", "1.20", "--currency", "EUR").code == 5
    change = {k: v for k, v in stub.asked[-1].json.items() if v is not None}
    assert change == {"price_cuda": 1.2, "currency": "EUR"}


def test_models_have_prices_of_their_own_and_the_others_keep_theirs(stub: Stub, cli: Cli) -> None:
    known = PRICES | {"models": {"A100 80GB": 2.0}}
    stub.routes = {"GET /billing/prices": reply(body=known), "PATCH /admin/limits": reply(403, {"error": {}})}
    assert cli("billing", "price").out.splitlines()[-1].split() == ["A100", "80GB", "2.00", "EUR"]
    for words, expected in ((["H100", "3.5"], "A100 80GB=2, H100=3.5"), (["A100 80GB", "--remove"], "")):
        cli("billing", "price", *words)
        change = {k: v for k, v in stub.asked[-1].json.items() if v is not None}
        assert change == {"price_models": expected}


def test_a_quote_tells_time_and_cost_and_what_it_rests_on(code: Stub, cli: Cli) -> None:
    ran = cli("training", "quote", "--accels", "1", "--", "train.py", "--steps", "100")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[1].startswith("1 × 1")
    assert "10 min to 12 min" in ran.out and "0.20 EUR to 0.24 EUR" in ran.out and "measured, 2 jobs" in ran.out
    assert "at least 5 min" in ran.out and "at least 0.20 EUR" in ran.out
    assert "From: first, second." in ran.err
    asked = sent(code, f"POST {W}/quotes")
    assert asked["entry"] == ["train.py", "--steps", "100"] and asked["source_id"] == "src_1"
    empty = QUOTE | {"rows": [], "rests_on": [], "said": ["no job ran this"], "price": 0.0}
    code.routes[f"POST {W}/quotes"] = reply(body=empty)
    ran = cli("training", "quote", "--", "train.py")
    assert ran.out == "" and "training quote --probe 60s -- train.py" in ran.err
    assert cli("training", "quote", "stray", "--", "train.py").code == 2


def test_run_tells_the_quote_first_and_sends_the_budget(code: Stub, cli: Cli) -> None:
    ran = cli("training", "run", "hello", "--quote", "--budget", "5", "--", "train.py")
    assert ran.code == 0, ran.err
    assert "Estimate: 10 min to 12 min, 0.20 EUR to 0.24 EUR (measured, 2 jobs)." in ran.err
    assert sent(code, f"POST {W}/jobs")["budget"] == "5.00"
    before = len(code.asked)
    ran = cli("training", "run", "hello", "--budget", "some", "--", "train.py")
    assert ran.code == 2 and "--budget 5.00, or --budget 2h" in ran.err and len(code.asked) == before


def test_a_probe_is_a_job_of_its_own_whose_cost_is_told_first_and_that_is_stopped_in_time(code: Stub, cli: Cli) -> None:
    code.routes[f"GET {W}/jobs/{views.ID}"] = reply(body=views.job("running"))
    stopped = views.job("stopped")

    def stop(handler: Any) -> None:
        code.routes[f"GET {W}/jobs/{views.ID}"] = reply(body=stopped)
        reply(body=stopped)(handler)

    code.routes[f"POST {W}/jobs/{views.ID}/stop"] = stop
    ran = cli("training", "quote", "--probe", "0.2s", "--accels", "2", "--", "train.py")
    assert ran.code == 0, ran.err
    assert "it costs at most 0.0401 EUR" in ran.err
    probe = sent(code, f"POST {W}/jobs")
    assert probe["name"].startswith("probe-train-") and probe["max_restarts"] == 0 and probe["time_limit_s"] == 60
    assert sent(code, f"POST {W}/quotes")["job"] == views.ID


def test_a_probe_that_fails_says_why(code: Stub, cli: Cli) -> None:
    code.routes[f"GET {W}/jobs/{views.ID}"] = reply(body=views.job("failed", reason="no such file"))
    code.routes[f"POST {W}/jobs/{views.ID}/stop"] = reply(body=views.job("failed"))
    ran = cli("training", "quote", "--probe", "60s", "--", "train.py")
    assert ran.code == 1 and "no such file" in ran.err and "shoal training logs hello" in ran.err


def test_the_budget_of_a_sweep_is_that_of_all_its_trials(code: Stub, cli: Cli) -> None:
    code.routes[f"POST {W}/sweeps"] = reply(409, {"error": {"code": "name_taken", "message": "taken"}})
    ran = cli("sweep", "run", "lr", "--param", "lr=1,2", "--budget", "5", "--", "train.py")
    assert ran.code == 4, ran.err
    asked = sent(code, f"POST {W}/sweeps")
    assert asked["budget"] == "5.00" and asked["job"]["budget"] is None
