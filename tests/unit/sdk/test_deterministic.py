"""`shoal.init(deterministic=True)`: what it sets, and which guarantee verify-resume then states."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.cli.verify.guarantee import guarantee  # noqa: E402
from shoal.cli.verify.report import Evidence, Plan, certify, show  # noqa: E402
from shoal.sdk.determinism import WORKSPACE, make_deterministic  # noqa: E402
from shoal.sdk.saving import layout  # noqa: E402
from shoal.train import Params, Trainer  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.get(WORKSPACE)
    monkeypatch.delenv(WORKSPACE, raising=False)
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
    os.environ.pop(WORKSPACE, None)
    if before is not None:
        os.environ[WORKSPACE] = before


def settings() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )


def test_the_switch_sets_all_that_torch_needs(tmp_path: Any) -> None:
    shoal.init("t", dir=tmp_path).finish()
    assert settings() == (False, False, True, None)
    shoal.init("t", dir=tmp_path, deterministic=True).finish()
    assert settings() == (True, True, False, ":4096:8")


def test_an_operator_that_is_not_deterministic_is_named(tmp_path: Any) -> None:
    with shoal.init("t", dir=tmp_path, deterministic=True), pytest.raises(RuntimeError, match="put_"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), accumulate=False)


@pytest.mark.parametrize(("given", "kept"), [(":16:8", ":16:8"), (":0:0", ":4096:8")])
def test_a_workspace_of_the_user_s_that_serves_is_kept(monkeypatch: pytest.MonkeyPatch, given: str, kept: str) -> None:
    monkeypatch.setenv(WORKSPACE, given)
    make_deterministic()
    assert os.environ[WORKSPACE] == kept


def test_too_late_for_cuda_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with caplog.at_level(logging.WARNING):
        make_deterministic()
    assert "Call shoal.init first" in caplog.text


def test_the_trainer_s_parameters_have_the_switch() -> None:
    params = Params(epochs=1, deterministic=True)
    assert Trainer(params, nn.Linear(1, 1)).run_options()["deterministic"] is True


def checkpoint(directory: Any, *, deterministic: bool, value: float = 1.0) -> Evidence:
    run = shoal.init("t", dir=directory, deterministic=deterministic, checkpoint_every_s=None)
    model = nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, value)
    run.prepare(model)
    torch.manual_seed(0)
    run.step()
    run.checkpoint(wait=True)
    run.finish()
    return Evidence("a run", checkpoint=directory / "checkpoints" / layout.name_of(1))


@pytest.mark.parametrize(
    ("deterministic", "level"), [(True, "bit_exact"), (False, "bit_exact_here")], ids=["deterministic", "not"]
)
def test_the_certificate_says_which_guarantee_holds(
    tmp_path: Any, capsys: Any, deterministic: bool, level: str
) -> None:
    runs = [checkpoint(tmp_path / name, deterministic=deterministic) for name in "ab"]
    found = certify(Plan(1, 1), *runs)
    assert found["bit_exact"] and found["guarantee"]["level"] == level
    assert found["device"] == "cpu" and found["deterministic"] is deterministic
    show(found)
    shown = capsys.readouterr().out
    assert "guarantee:" in shown and ("deterministic algorithms only" in shown) is deterministic


WEIGHT = {"what": "tensor", "file": "model.pt", "where": "weight"}
GENERATOR = {"what": "tensor", "file": "training.pt", "where": "rng[0].torch"}


@pytest.mark.parametrize(
    ("compared", "order", "level", "words"),
    [
        ({"equal": True, "deterministic": True}, None, "bit_exact", "same hardware"),
        ({"equal": True, "deterministic": True, "world_size": 3}, None, "bit_exact_here", "another order"),
        ({"equal": True, "deterministic": True, "world_size": 3, "parallel": "fsdp"}, None, "bit_exact", "same"),
        ({"equal": True, "deterministic": None}, None, "bit_exact_here", "deterministic=True"),
        ({"differences": [WEIGHT]}, None, "same_data", "deterministic=True"),
        ({"differences": [WEIGHT], "deterministic": True}, None, "same_data", "not the same bits"),
        ({"differences": [WEIGHT, GENERATOR]}, None, "none", "not restored"),
        ({"differences": [WEIGHT]}, "step 3 used other samples", "none", "not restored"),
        ({"equal": True, "deterministic": True}, "step 3 used other samples", "none", "not restored"),
    ],
)
def test_a_guarantee_is_never_more_than_what_was_seen(compared: Any, order: Any, level: str, words: str) -> None:
    facts = {"equal": False, "deterministic": False, "parallel": "ddp", "world_size": 2, "differences": [], **compared}
    found = guarantee(facts, order=order, order_checked=True)
    assert found["level"] == level and words in found["text"]


def test_without_a_sample_log_nothing_is_said_of_the_data() -> None:
    facts = {"equal": False, "deterministic": True, "parallel": "none", "world_size": 1, "differences": [WEIGHT]}
    assert guarantee(facts, order=None, order_checked=False)["level"] == "none"
