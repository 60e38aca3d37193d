"""Money and time with real processes: a budget holds and leaves a checkpoint, a killed server charges nothing twice, a probe measures."""

import json
from datetime import datetime

import pytest

from shoal.testing.engines import eventually
from shoal.testing.live import live_server

PRICE = 360.0
"""Ten cents for a second of a slot."""
SAVES = """
import os, pathlib, signal, sys, time
def save(*_):
    folder = pathlib.Path(os.environ["OUTPUT_DIR"], "checkpoint-7")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.bin").write_bytes(b"w" * 1000)
    (folder / "trainer_state.json").write_text('{"global_step": 7}')
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("READY", flush=True)
while True:
    time.sleep(0.05)
"""
STEPS = """
import sys, time
total, begun = int(sys.argv[2]), time.time()
for step in range(1, total + 1):
    print(f"step {step}/{total}", flush=True)
    time.sleep(0.05)
print("TOOK", time.time() - begun, flush=True)
"""


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("home"), slots=4) as server:
        server.cli("billing", "price", "cpu", str(PRICE), "--currency", "EUR")
        yield server


def test_a_job_stops_within_its_budget_and_keeps_what_it_saved(priced, code):
    folder = code({"train.py": SAVES})
    ran = priced.cli(
        "training", "run", "capped", "--dir", str(folder), "--budget", "1.70", "-f", "--", "train.py", check=1
    )  # fmt: skip
    assert "budget of 1.70 EUR reached" in ran.stderr
    view = priced.inspect("capped")
    assert (view["status"], view["reason"], view["attempts"]) == ("failed", "budget of 1.70 EUR reached", 1)
    assert [c["step"] for c in priced.json("training", "checkpoints", "capped")] == [7]
    row = next(r for r in priced.json("billing", "usage")["rows"] if r["key"] == "capped")
    assert 0.2 < row["cost"] <= 1.70
    assert row["cost"] == pytest.approx(row["slot_seconds"] * PRICE / 3600, abs=1e-5)


def written(server):
    """Bytes that agents keep until the server takes them."""
    return sum(f.stat().st_size for f in server.layout.nodes_dir.glob("*/spool/**/*") if f.is_file())


def test_a_kill_of_the_server_charges_the_true_time_once(priced, code):
    folder = code({"train.py": STEPS})
    priced.cli("training", "run", "outlives", "--dir", str(folder), "--", "train.py", "--steps", "120")
    priced.wait_for("outlives", lambda view: view.status == "running")
    priced.kill()
    before = written(priced)
    eventually(lambda: written(priced) > before + 500)  # the job goes on meanwhile
    priced.start()
    priced.cli("training", "wait", "outlives")
    took = next(float(line["text"].split()[1]) for line in priced.logs("outlives") if line["text"].startswith("TOOK"))
    row = next(r for r in priced.json("billing", "usage")["rows"] if r["key"] == "outlives")
    attempt = priced.inspect("outlives")["attempt_list"][0]
    held = datetime.fromisoformat(attempt["ended_at"]) - datetime.fromisoformat(attempt["created_at"])
    assert took <= row["slot_seconds"] <= held.total_seconds() + 1.0
    assert priced.json("billing", "verify")["whole"]


def test_a_probe_measures_what_a_whole_run_would_take(priced, code):
    folder = code({"train.py": STEPS})
    asked = ("--dir", str(folder), "--json", "--", "train.py", "--steps", "2000")
    probe = json.loads(priced.cli("training", "quote", "--probe", "3s", *asked).stdout)
    first = probe["rows"][0]
    assert first["basis"] == "scaled" and 90 < first["low_s"] <= first["high_s"] < 600  # 2000 steps of 0.05 s and more
    assert first["cost_low"] == pytest.approx(first["low_s"] * PRICE / 3600, rel=0.01)
    assert all(row["basis"] == "bound" for row in probe["rows"][1:]) and probe["rests_on"][0].startswith("probe-train-")
