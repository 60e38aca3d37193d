"""Functions for a script that runs as a trial."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import shoal
from shoal.core.errors import UsageError
from shoal.sdk.trial import is_trial


def test_the_values_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("SHOAL_PARAMS", raising=False)
    assert shoal.trial_params() == {}
    monkeypatch.setenv("SHOAL_PARAMS", '{"lr": 0.001, "sizes": [1, 2]}')
    assert shoal.trial_params() == {"lr": 0.001, "sizes": [1, 2]}
    for wrong in ("[1]", "{"):
        monkeypatch.setenv("SHOAL_PARAMS", wrong)
        with pytest.raises(UsageError, match="not a JSON object"):
            shoal.trial_params()


def test_a_process_is_a_trial_if_it_has_a_number(monkeypatch):
    monkeypatch.delenv("SHOAL_TRIAL", raising=False)
    assert not is_trial()
    monkeypatch.setenv("SHOAL_TRIAL", "0")
    assert is_trial()


def test_skipping_ends_the_process_with_77_and_the_reason_last(tmp_path):
    script = "import shoal; run = shoal.init(); run.step(loss=1.0); shoal.skip_trial('too large:\\n  9 GB')"
    env = {"SHOAL_SPOOL": str(tmp_path / "spool"), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (77, "skipped: too large: 9 GB")
    records = [json.loads(line) for line in (tmp_path / "spool" / "rank-0.jsonl").read_text().splitlines()]
    assert records[-1]["k"] == "f" and records[-1]["status"] == "skipped"


def test_using_it_costs_no_heavy_import():
    script = "import shoal, sys; shoal.trial_params(); print([m for m in ('torch', 'pydantic', 'httpx') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
