"""One rank of the tests of exact resume: `resume_worker.py SETTINGS`, a JSON object."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import shoal
from shoal.sdk.run import Run

SAMPLES, FEATURES = 61, 6


class Noisy(Dataset):  # type: ignore[type-arg]
    """Draws in __getitem__, as augmentations do, and says which sample it is."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.sin(torch.arange(1, FEATURES + 1) * float(index + 1))
        return x + 0.1 * torch.randn(FEATURES), x.sum(), index


def train(run: Run, settings: dict[str, object]) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=int(str(settings.get("num_workers", 0))))
    model, optimizer, warm_up, loader = run.prepare(model, optimizer, warm_up, loader)
    seen = Path(str(settings["seen"])).with_suffix(f".{run.rank}")
    with seen.open("a") as file:
        for _ in range(int(str(settings.get("epochs", 3)))):
            for x, y, index in loader:
                loss = ((model(x)[:, 0] - y) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                time.sleep(float(str(settings.get("pace_s", 0.0))))  # a model that takes longer to compute
                optimizer.step()
                run.step(loss=loss)
                warm_up.step()
                training = run._training
                assert training is not None
                used = index.tolist() if training.weight else []
                file.write(f"{json.dumps([run.global_step, training.is_boundary, used])}\n")
                file.flush()
                if run.should_stop:
                    return
                if run.global_step == settings.get("hang_at"):
                    run.checkpoint(wait=True)
                    Path(str(settings["seen"])).with_suffix(f".hangs.{run.rank}").touch()
                    signal.pause()
    final = {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"], "rng": torch.get_rng_state()}
    torch.save(final, f"{settings['final']}.{run.rank}")


def rank(settings: dict[str, object]) -> None:
    torch.set_num_threads(1)
    every = settings.get("every", 4)
    run = shoal.init(seed=3, checkpoint_every=every, checkpoint_every_s=None, parallel="ddp")  # type: ignore[arg-type]
    with run:
        train(run, settings)


if __name__ == "__main__":
    rank(json.loads(sys.argv[1]))
