"""Kill -9 of server, agent and worker while checkpoints are written and captured.

Nothing torn is ever visible, nothing that was once visible is lost. `SHOAL_KILLS` sets how often (./scripts/soak: 200).
"""

import hashlib
import json
import os
import random
import time
from contextlib import suppress

import psutil
import pytest

from shoal.core.errors import ShoalError
from shoal.testing.live import live_server
from shoal.testing.patience import patient

KILLS = int(os.environ.get("SHOAL_KILLS", "4"))
# Writes each checkpoint in place and slowly, as careless scripts do, and the hash that proves it whole at the very end.
WRITER = """
import hashlib, json, os, time
from pathlib import Path
output, resume = Path(os.environ["OUTPUT_DIR"]), os.environ.get("SHOAL_RESUME_FROM")
start = json.loads((Path(resume) / "state.json").read_text())["step"] if resume else 0
for step in range(start + 1, 100_000):
    folder = output / f"checkpoint-{step}"
    folder.mkdir(exist_ok=True)
    data = os.urandom(300_000)
    with (folder / "model.bin").open("wb") as file:
        for i in range(0, len(data), 30_000):
            file.write(data[i : i + 30_000])
            file.flush()
            time.sleep(0.005)
    (folder / "state.json").write_text(json.dumps({"step": step, "sha": hashlib.sha256(data).hexdigest()}))
    print(f"step {step}/100000", flush=True)
    if (output / "stop").exists() or step % 7 == 0:
        time.sleep(2.5)
"""


@pytest.fixture
def server(tmp_path):
    with live_server(tmp_path / "home", slots=1) as server:
        yield server


def files_of(client, checkpoint):
    """Path → bytes, each chunk verified by the client's own hash."""
    manifest = client.checkpoints.manifest(checkpoint.id)
    return {f.path: b"".join(client.store.fetch(c.hash) for c in f.chunks) for f in manifest.files}


def strike(server, job_id):
    """End one of the three by force; returns which."""
    what = random.choice(["server", "agent", "worker"])
    if what == "server":
        server.kill()
        time.sleep(random.random())
        server.start()
        return what
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line, env = " ".join(process.cmdline()), process.environ()
            if (what == "worker" and env.get("SHOAL_JOB_ID") == job_id and line.endswith("train.py")) or (
                what == "agent" and "shoal.agent" in line and str(server.home) in line and "salvage" not in line
            ):
                process.kill()
    return what


def test_what_is_visible_is_whole_and_stays(server, code):
    folder = code({"train.py": WRITER})
    server.cli("training", "run", "writer", "--dir", str(folder), "--max-restarts", "1000", "--", "train.py")
    job_id = server.wait_for("writer", lambda j: j.status == "running").id
    seen: dict[str, str] = {}
    kills: list[str] = []
    ended = None
    deadline = time.monotonic() + patient(120 + KILLS * 15)
    while len(kills) < KILLS and time.monotonic() < deadline:
        before = len(seen)
        while len(seen) == before and time.monotonic() < deadline:
            with suppress(ShoalError, AssertionError), server.client() as client:
                seen.update({c.id: c.manifest_id for c in client.checkpoints.list(job="writer")})
                ended = client.jobs.get("writer")
            assert not (ended and ended.ended_at), f"after {kills}: {ended.reason}"
            time.sleep(0.2)
        time.sleep(random.uniform(0, 2.5))
        kills.append(strike(server, job_id))
    server.cli("training", "stop", "writer", "--wait")
    assert len(kills) == KILLS, f"only {kills}"
    with server.client() as client:
        final = client.checkpoints.list(job="writer")
        assert {c.id: c.manifest_id for c in final}.items() >= seen.items(), "a visible checkpoint was lost"
        for checkpoint in final:
            files = files_of(client, checkpoint)
            state = json.loads(files["state.json"])
            assert hashlib.sha256(files["model.bin"]).hexdigest() == state["sha"], f"{checkpoint.name} is torn"
        view = client.jobs.get("writer")
    assert view.status == "stopped"
    steps = [c.step for c in final]
    assert steps == sorted(steps)
    print(f"{len(final)} checkpoints whole after {len(kills)} kills ({view.attempts} attempts)")
