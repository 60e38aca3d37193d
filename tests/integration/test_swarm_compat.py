"""NetMind's swarm mode, its guide's files as they stand: two trainers and the monitor on one machine, without a network."""

import json
import os
import re
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from swarm_workers import Workers

from shoal.compat.netmind.checkpoint import NetmindCheckPoint
from shoal.testing.engines import eventually
from shoal.testing.extras import needs

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(600),
    # Not imported to see whether it is there: that takes seconds, and only the peers need it.
    needs("hivemind"),
]

HERE = Path(__file__).resolve().parent
QUIET = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "netmind" / "swarm"
SWARM = ("--experiment_prefix", "bert", "--host_maddrs", "/ip4/127.0.0.1/tcp/0")
TRAINING = (
    "--learning_rate", "0.3", "--warmup_steps", "0", "--total_steps", "90", "--target_batch_size", "1024",
    "--matchmaking_time", "1", "--averaging_timeout", "8", "--default_refresh_period", "0.5", "--max_refresh_period", "1",
)  # fmt: skip
MONITORING = (
    "--refresh_period", "0.3", "--store_checkpoints", "--save_checkpoint_step_interval", "2", "--upload_interval", "0",
)  # fmt: skip

# As in NetMind's samples for the Hugging Face Trainer: hivemind is imported before NetmindMixins.
HF_TRAINER = """
import sys, torch
from hivemind import DHT, Float16Compression, Optimizer, get_dht_time
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback
import utils
from callback import CollaborativeCallback
from NetmindMixins.Netmind import HivemindTrainerCallback

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        return {"loss": (self.line(x)[:, 0] - labels).pow(2).mean()}

class NoOpScheduler(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]
    def step(self):
        self._last_lr = self.get_lr()

torch.manual_seed(0)
model, x = Model(), torch.randn(256, 4)
data = [{"x": row, "labels": row.sum()} for row in x]
validators, key = utils.make_validators("hf")
dht = DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"], record_validators=validators)
optimizer = Optimizer(
    dht=dht, run_id="hf", target_batch_size=16, batch_size_per_step=8, params=list(model.parameters()),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1), matchmaking_time=0.5, averaging_timeout=3,
    scheduler=lambda inner: torch.optim.lr_scheduler.ConstantLR(inner, 1.0),
    offload_optimizer=True, delay_optimizer_step=True, delay_grad_averaging=True, grad_compression=Float16Compression(),
    tracker_opts={"default_refresh_period": 0.2, "min_refresh_period": 0.1},
)
call = CollaborativeCallback(dht, optimizer, model, key, 600, 2)
assert isinstance(call, HivemindTrainerCallback)
args = TrainingArguments(
    output_dir="out", max_steps=40, per_device_train_batch_size=8, report_to="none", save_strategy="no", use_cpu=True,
    logging_steps=1, dataloader_pin_memory=False, disable_tqdm=True,
)
trainer = Trainer(
    model=model, args=args, train_dataset=data, optimizers=(optimizer, NoOpScheduler(optimizer)), callbacks=[call]
)
trainer.train()
reported = dht.get("hf_metrics", latest=True).value
assert key in reported and reported[key].value["step"] > 1, reported
with torch.no_grad():
    model.line.weight.fill_(float("nan"))
call.on_step_end(loss=1.0)
assert all(p.isfinite().all() for group in optimizer.opt.param_groups for p in group["params"])
print("rounds", optimizer.local_epoch, "backup of", call.latest_backup["step"], flush=True)
if "--fail" in sys.argv:
    raise RuntimeError("planted")
"""


class Script:
    """Its process, which is not a child of ours."""

    def __init__(self, scripts, folder, command, env, log):
        self._scripts, self._name = scripts, folder
        scripts.start(name=folder, command=command, folder=folder, env=env, log=str(log))
        self.pid = scripts.fact(folder, "pid", timeout_s=120)

    def poll(self):
        return self._scripts.known(self._name, "exit")

    def wait(self, timeout_s):
        return self._scripts.fact(self._name, "exit", timeout_s)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def session(self):
        """All that is left of it and of what it has started."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


class Peer:
    """One of the guide's scripts, run where it lies; its run's records, and the processes it started."""

    def __init__(self, scripts, folder, *command):
        self.folder, self.processes = folder, set()
        folder.mkdir()
        env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")} | {
            **QUIET, "OMP_NUM_THREADS": "1",
            "SHOAL_SPOOL": str(folder / "spool"), "OUTPUT_DIR": str(folder / "out"), "TMPDIR": scripts.folder,
        }  # fmt: skip
        self.log = folder / "log"
        self.log.touch()
        self.process = Script(scripts, str(folder), [str(word) for word in command], env, self.log)

    def address(self):
        found = re.search(r"--initial_peers\S* *(?:\x1b\[\d+m)*(/ip4/127\S+/p2p/\w+)", self.text)
        return found and found[1]

    @property
    def text(self):
        return self.log.read_text(errors="replace")

    def records(self, kind):
        files = list((self.folder / "spool").glob("rank-0.jsonl"))
        lines = files[0].read_text().splitlines() if files else []
        return [r for r in map(json.loads, lines) if r["k"] == kind]

    def steps(self):
        return [r["v"] for r in self.records("s")]

    def checkpoints(self):
        return sorted((self.folder / "out").rglob("model.pt"))

    def look_at_processes(self):
        self.processes |= set(psutil.Process(self.process.pid).children(recursive=True))

    def kill(self):
        for process in {*self.processes, *self.process.session()}:
            with suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    made = Workers(HERE / "swarm_scripts.py", tmp_path_factory.mktemp("scripts") / "log", **QUIET)
    with tempfile.TemporaryDirectory(prefix="sw-") as made.folder:  # a short name: killed peers leave sockets there
        yield made
    made.close()


@pytest.fixture
def start(tmp_path, scripts):
    peers = []

    def start(name, *command):
        peers.append(Peer(scripts, tmp_path / name, *command))
        return peers[-1]

    yield start
    for peer in peers:
        peer.kill()


def rounds_of(trainer):
    """Return the rounds that a trainer has reported."""
    return max((v.get("swarm/step", 0) for v in trainer.steps()), default=0)


def test_the_guides_trainers_and_monitor_train_one_model_and_save_it(tmp_path, start):
    made = start("made", EXAMPLE / "make_data.py", tmp_path / "data", 40_000)
    assert made.process.wait(120) == 0, made.text
    model = ("--model_name_or_path", str(tmp_path / "data" / "model"))
    data = (*model, "--dataset_path", str(tmp_path / "data" / "tokenized"))
    monitor = start("monitor", EXAMPLE / "run_training_monitor.py", *SWARM, *model, *MONITORING)
    eventually(monitor.address, timeout_s=150)
    joining = ("--initial_peers", monitor.address())
    trainers = [start(f"trainer-{i}", EXAMPLE / "run_trainer.py", *SWARM, *data, *TRAINING, *joining) for i in (0, 1)]

    def has_learnt():
        told = monitor.steps()
        together = [v for v in told if v["alive peers"] == 2]
        is_better = len(together) >= 3 and together[-1]["loss"] < 0.97 * told[0]["loss"]
        return is_better and monitor.checkpoints() and all(rounds_of(trainer) >= 3 for trainer in trainers)

    eventually(has_learnt, timeout_s=240)
    for peer in (monitor, *trainers):
        peer.look_at_processes()
        assert len(peer.processes) >= 3
    trainers[0].process.send_signal(signal.SIGTERM)
    trainers[1].process.send_signal(signal.SIGKILL)
    assert [t.process.wait(90) for t in trainers] == [0, -signal.SIGKILL], trainers[0].text
    monitor.process.send_signal(signal.SIGTERM)
    assert monitor.process.wait(90) == 0, monitor.text

    assert all(set(v) == {"loss", "alive peers", "samples", "performance"} for v in monitor.steps())
    for trainer in trainers:
        assert max(v.get("swarm/peers", 0) for v in trainer.steps()) == 2
        assert rounds_of(trainer) >= 3
    assert "Finished downloading state" in monitor.text
    saved = NetmindCheckPoint(monitor.checkpoints()[-1].parent).state_dict()
    assert saved and all(t.isfinite().all() for t in saved.values())
    # torch's own helper for shared memory notices a little later that nobody is left.
    eventually(lambda: not any(p.is_running() for peer in (monitor, *trainers) for p in peer.processes), timeout_s=30)


def test_the_hugging_face_trainer_reports_goes_back_to_its_backup_and_a_script_that_fails_ends(tmp_path, start):
    (tmp_path / "hf.py").write_text(HF_TRAINER)
    peer = start("peer", "-m", "shoal.compat.swarm", tmp_path / "hf.py", "--fail")
    eventually(lambda: "rounds" in peer.text or peer.process.poll() is not None, timeout_s=200)
    assert peer.process.wait(90) == 1, peer.text
    assert "RuntimeError: planted" in peer.text and "restoring those of step" in peer.text
    rounds = [v["swarm/step"] for v in peer.steps() if "swarm/step" in v]
    assert rounds == sorted(set(rounds)) and rounds[-1] >= 5
    losses = [v["train/loss"] for v in peer.steps() if "train/loss" in v]
    assert losses[-1] < losses[0] / 4
    eventually(lambda: not peer.process.session())
