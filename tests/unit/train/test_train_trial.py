"""Params and Trainer in a trial of a sweep: its values without a line of code, too large a model skipped."""

from __future__ import annotations

import json
import signal

import pytest
import torch

import shoal
from shoal.agent.wire import STOP_REASON
from shoal.core.errors import Refused, UsageError
from shoal.train import Params, Range, Trainer


class Mine(Params):
    lr: float = Range([1e-3, 1e-4])
    betas: tuple[float, float] = (0.9, 0.99)
    hidden: int
    epochs: float = 1


@pytest.fixture
def trial(monkeypatch):
    def begin(**values):
        monkeypatch.setenv("SHOAL_PARAMS", json.dumps(values))
        monkeypatch.setenv("SHOAL_TRIAL", "3")

    return begin


def test_params_take_the_values_of_the_sweep_whatever_the_script_says(trial):
    trial(lr=0.5, betas=[0.1, 0.2], hidden=7, unrelated="x")
    params = Mine(hidden=3, epochs=2)
    assert (params.lr, params.betas, params.hidden, params.epochs) == (0.5, (0.1, 0.2), 7, 2)
    assert Mine().hidden == 7, "also those without a default"


def test_what_is_made_of_params_is_what_it_is_told_to_be(trial):
    saved = Mine(hidden=3).to_dict()
    trial(lr=0.5, hidden=7)
    assert Mine().replace(lr=0.1).lr == 0.1
    assert Mine.from_dict(saved).hidden == 3
    assert [p.lr for p in Mine.from_dict(saved).variants()] == [1e-3, 1e-4]


def test_values_of_the_wrong_type_and_near_misses_are_told(trial, capsys):
    trial(hidden="wide")
    with pytest.raises(UsageError, match="hidden is 'wide'"):
        Mine()
    trial(hiden=7)
    assert Mine(hidden=1).hidden == 1
    assert "the sweep sets hiden, which is not a field of Mine; did you mean hidden?" in capsys.readouterr().err


def test_a_model_that_is_too_large_is_skipped_in_a_sweep_and_refused_elsewhere(trial, monkeypatch, capsys):
    monkeypatch.delenv("SHOAL_TRIAL", raising=False)
    params = Mine(hidden=1, lr=0.1, max_model_size=10)
    with pytest.raises(Refused, match="the model has 72 parameters"):
        Trainer(params, torch.nn.Linear(8, 8))
    trial(lr=0.1)
    with pytest.raises(SystemExit) as ended:
        Trainer(params, torch.nn.Linear(8, 8))
    assert ended.value.code == 77
    assert "skipped: the model has 72 parameters, more than max_model_size=10" in capsys.readouterr().err


@pytest.mark.parametrize(("reason", "saved"), [("pruned: 0.4 after 3 reports", 0), ("stopped by ada@example.org", 1)])
def test_a_trial_that_fell_behind_stops_without_a_last_checkpoint(tmp_path, monkeypatch, reason, saved):
    monkeypatch.setenv("SHOAL_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "out"))
    with shoal.init(checkpoint_every_s=None) as run:
        model = run.prepare(torch.nn.Linear(2, 2))
        run.step(loss=model.weight.sum())
        (tmp_path / "spool" / STOP_REASON).write_text(reason)
        signal.raise_signal(signal.SIGTERM)
        run.step(loss=model.weight.sum())
        assert run.should_stop and run.stop_reason == reason
    assert len(list((tmp_path / "out").glob("*"))) == saved
