"""One rank of test_trainer_workers.py: `trainer_worker.py SCENARIO FOLDER`; leaves what it found in FOLDER/rank<N>.json."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from shoal.testing.patience import patient
from shoal.train import Model, Params, Trainer

SIZE = 37
X = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(1))
Y = X @ torch.randn(4, 1, generator=torch.Generator().manual_seed(2))
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Net(Model):
    def __init__(self, params: Params):
        super().__init__(params)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


class Fit(Trainer):
    folder = Path()

    def train_batch(self, batch):
        x, y = batch
        return (self.model(x) - y).pow(2).mean()

    def training_data(self):
        return torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(X, Y), batch_size=self.params.batch_size, shuffle=True
        )

    def evaluation_data(self):
        return torch.utils.data.TensorDataset(X, Y)

    def run_options(self):
        return super().run_options() | {"dir": self.folder, "checkpoint_every": 3}


class Uneven(Fit):
    """Rank 1 has less."""

    def training_data(self):
        for n in range(6 if RANK == 0 else 4):
            yield 0, (X[n : n + 5], Y[n : n + 5])

    def evaluation_data(self):
        return None


class LongEvaluation(Fit):
    def evaluate(self):
        time.sleep(2.5 * TIMEOUT_S)
        return {"error": float(len(self.state.evaluations))}


class LongStep(Fit):
    def train_batch(self, batch):
        if RANK == 0 and self.state.steps == 2:
            time.sleep(2.5 * TIMEOUT_S)
        return super().train_batch(batch)


class Slow(Fit):
    def on_step(self, figures):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"at{RANK}").write_text(str(self.state.steps))
        time.sleep(0.05)


TIMEOUT_S = patient(3)
KINDS = {"long_evaluation": LongEvaluation, "long_step": LongStep, "slow": Slow}


def fit(folder: Path, kind: type[Fit] = Fit, **given):
    params = Params(**{"batch_size": 4, "lr": 0.05, "epochs": 3, "seed": 3, "num_workers": 0, **given})
    trainer = kind(params, Net(params))
    trainer.folder = folder
    outcome = trainer.fit()
    return {
        "reason": outcome.reason,
        "steps": outcome.steps,
        "seen": outcome.seen,
        "losses": list(trainer.state.losses),
        "evaluations": trainer.state.evaluations,
    }


def main() -> None:
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    if scenario.startswith("long"):
        dist.distributed_c10d._get_default_timeout = lambda backend: timedelta(seconds=TIMEOUT_S)
    if scenario == "several":
        if WORLD > 1:
            dist.init_process_group("gloo")
        each = 4 * 2 // WORLD
        found = {"plain": fit(folder / "plain", batch_size=each)}
        found["accumulated"] = fit(folder / "accumulated", batch_size=each // 2, accumulate=2)
        if WORLD > 1:
            found["fsdp"] = fit(folder / "fsdp", batch_size=each, parallel="fsdp")
            found["uneven"] = fit(folder / "uneven", Uneven, train_samples=1000, epochs=1)
    else:
        found = fit(folder / "run", KINDS[scenario], epochs=1 if scenario.startswith("long") else 3)
    (folder / f"rank{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
