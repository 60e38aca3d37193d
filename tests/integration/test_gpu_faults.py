"""A GPU that breaks under a job, on a real server whose GPUs come from a fake NVML: drained, and the job continues elsewhere.

The job's kernel on that GPU never returns, as on a real one, so nothing but the driver's report can end it.
"""

from __future__ import annotations

import os

import pytest

from shoal.testing.engines import eventually
from shoal.testing.fake_devices import Box, build_nvml, gpu
from shoal.testing.live import live_server

PRELOADS = False
STEPS, BREAKS = 130, 100
TRAIN = f"""
import shoal.testing.light_torch
import hashlib, os, sys, threading
import torch, shoal

torch.set_num_threads(1)
device = os.environ["CUDA_VISIBLE_DEVICES"]
print("on", device, flush=True)
data = torch.utils.data.TensorDataset(torch.sin(torch.arange(61.0)).unsqueeze(1), torch.arange(61))
with shoal.init(seed=3, parallel="none", checkpoint_every=20, checkpoint_every_s=None) as run:
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    while run.global_step < {STEPS}:
        for x, index in loader:
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
            if run.global_step == {BREAKS} and device.startswith("GPU-00000003") and "breaks" in sys.argv:
                print("waits for its GPU", flush=True)
                threading.Event().wait()
            if run.global_step >= {STEPS}:
                break
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
"""


class SixGpus(Box):
    """A machine with six GPUs, of which the last is off the bus."""

    def report(self, broken=None):
        """Let the driver report an uncorrectable memory error of a GPU."""
        cards = [gpu(error=15 if n == 5 else 0, ecc=int(n == broken)) for n in range(6)]
        self.nvml(self.root.parent, *cards, xids=[] if broken is None else [(broken, 48)])


@pytest.fixture
def box(tmp_path):
    box = SixGpus(tmp_path / "box")
    build_nvml(tmp_path / "box")
    box.report()
    return box


@pytest.fixture
def server(tmp_path, box, monkeypatch):
    """A server on a machine with six GPUs, of which one is off the bus and the site leaves three."""
    box.smi("")
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML"):
        monkeypatch.setenv(name, box.env[name])
    monkeypatch.setenv("PATH", f"{box.env['PATH']}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,5")
    with live_server(tmp_path / "home", slots=3, warm=False) as server:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        yield server


@pytest.mark.torch
def test_after_an_ecc_error_on_device_3_at_step_100_the_device_is_drained_and_the_job_ends_exactly_elsewhere(
    server, box, code
):
    folder = str(code({"train.py": TRAIN}))
    before = server.json("machine", "devices")
    assert [(d["label"], d["problem"]) for d in before] == [("GPU 3", ""), ("GPU 4", ""), ("GPU 5", "GPU is lost")]
    for name, words in (("broken", ["breaks"]), ("whole", [])):
        server.cli("training", "run", name, "--allow-cpu", "--dir", folder, "--", "train.py", *words)
        if words:
            eventually(lambda: "waits for its GPU" in [line["text"] for line in server.logs("broken")], 60)
            box.report(broken=3)
        job = server.wait_for(name, lambda j: j.status.is_terminal, "ends")
        assert (job.status, job.attempts) == ("succeeded", 1 if name == "whole" else 2), job.reason
    lines = {name: [line["text"] for line in server.logs(name)] for name in ("broken", "whole")}
    on = {name: [line[3:15] for line in found if line.startswith("on ")] for name, found in lines.items()}
    assert on == {"broken": ["GPU-00000003", "GPU-00000004"], "whole": ["GPU-00000004"]}
    results = {name: [line for line in found if line.startswith("weights ")] for name, found in lines.items()}
    assert len(results["broken"]) == 1 and results["broken"] == results["whole"], "exact"
    told = [event for event in server.inspect("broken")["events"] if event["kind"] == "device"]
    assert [event["message"] for event in told] == [
        "GPU 3 of 'local' is drained after a hardware fault; other devices are used"
    ]
    after = server.json("machine", "devices")
    assert (
        after[0]["problem"].endswith("1 uncorrectable ECC error since the last reset")
        or "Xid 48" in after[0]["problem"]
    )
    assert after[1]["is_free"]
    first, second = server.inspect("broken")["attempt_list"]
    assert first["reason"].startswith("rank 0 on node 0: GPU 3: ") and second["result"] == "succeeded"
