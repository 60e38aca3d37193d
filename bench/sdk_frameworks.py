"""The loop of bench/sdk.py through other frameworks: median µs of a step, the loader's share included."""

from __future__ import annotations

import contextlib
import logging
import statistics
import sys
import time
import warnings
from itertools import pairwise
from typing import Any


def plain(steps: int) -> float:
    return _loop(steps, lambda m, o, d: (m, o, d), lambda loss: loss.backward())


def accelerate(steps: int) -> float:
    from accelerate import Accelerator

    accelerator: Any = Accelerator(cpu=True)
    return _loop(steps, lambda m, o, d: accelerator.prepare(m, o, d), accelerator.backward)


def fabric(steps: int) -> float:
    from lightning_fabric import Fabric

    made: Any = Fabric(accelerator="cpu", devices=1)
    return _loop(steps, lambda m, o, d: (*made.setup(m, o), made.setup_dataloaders(d)), made.backward)


def lightning(steps: int) -> float:
    import pytorch_lightning as pl
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.linear(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    stamps: list[float] = []

    class Stamp(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any) -> None:
            stamps.append(time.perf_counter())

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer: Any = pl.Trainer(accelerator="cpu", devices=1, max_steps=steps, callbacks=[Stamp()], **quiet)
    with contextlib.redirect_stdout(sys.stderr):
        trainer.fit(Module(), _data())
    return _median(stamps)


def hf_trainer(steps: int) -> float:
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(64, 64)

        def forward(self, x: Any, labels: Any = None) -> Any:
            return {"loss": self.linear(x).square().mean()}

    stamps: list[float] = []

    class Stamp(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamps.append(time.perf_counter())

    torch.set_num_threads(1)
    data: Any = [{"x": torch.randn(64), "labels": torch.zeros(1)}] * 320
    options = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=32,
        max_steps=steps,
        logging_steps=10**9,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer: Any = Trainer(model=Model(), args=options, train_dataset=data, callbacks=[Stamp()])
    with contextlib.redirect_stdout(sys.stderr):
        trainer.train()
    return _median(stamps)


def _loop(steps: int, prepare: Any, backward: Any) -> float:
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, loader = prepare(model, optimizer, _data())
    stamps: list[float] = []
    while len(stamps) < steps:
        for batch in loader:
            backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            stamps.append(time.perf_counter())
    return _median(stamps)


def _data() -> Any:
    import torch

    return torch.utils.data.DataLoader([torch.randn(64)] * 320, batch_size=32)


def _median(stamps: list[float]) -> float:
    times = [after - before for before, after in pairwise(stamps)]
    return statistics.median(times[len(times) // 10 :]) * 1e6
