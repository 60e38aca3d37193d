"""One worker of bench/trainer.py: the same model and data through one framework, in blocks of steps on request."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import sys
import time
import warnings
from itertools import pairwise
from typing import Any, TextIO

WIDTH, LAYERS, BATCH, SAMPLES = 1024, 10, 16, 20_000
ENDLESS = 1_000_000
SETTLE = 3
"""Steps at the beginning of a block that do not count: the workers were just let go."""
LR = 1e-4


class Pacer:
    """Called after every step. Reports how long the steps took, then waits for the command to continue."""

    def __init__(self, steps: int, channel: TextIO):
        self._steps, self._channel = steps, channel
        self._stamps: list[float] = []
        self._is_first = True

    def __call__(self) -> None:
        self._stamps.append(time.perf_counter())
        if self._is_first:
            self._is_first = False
            self._wait({"first": time.time()})
        elif len(self._stamps) > self._steps + SETTLE:
            times = [after - before for before, after in pairwise(self._stamps)][SETTLE:]
            self._wait({"step_s": statistics.median(times)})

    def _wait(self, told: dict[str, float]) -> None:
        print(json.dumps(told), file=self._channel, flush=True)
        if not sys.stdin.readline():
            os._exit(0)
        self._stamps = [time.perf_counter()]


def raw_ddp(pace: Pacer) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    torch.distributed.init_process_group("gloo")
    model: Any = DistributedDataParallel(make_model())
    optimizer, scheduler = _optimizer(model)
    data = make_data()
    loader: Any = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, shuffle=True))
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            loss = model(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            loss.item()
            pace()


def shoal(pace: Pacer) -> None:
    from shoal.train import Params, Trainer

    class Bench(Trainer):  # type: ignore[misc]
        def train_batch(self, batch: Any) -> Any:
            return self.model(*batch)

        def training_data(self) -> Any:
            return make_data()

        def on_step(self, figures: Any) -> None:
            pace()

    params = Params(batch_size=BATCH, max_steps=ENDLESS, lr=LR, weight_decay=0.01, clip_norm=1.0, num_workers=0)
    Bench(params, make_model()).fit()


def accelerate(pace: Pacer) -> None:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator: Any = Accelerator(cpu=True)
    model = make_model()
    optimizer, scheduler = _optimizer(model)
    loader: Any = DataLoader(make_data(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            loss = model(x, y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            loss.item()
            pace()


def fabric(pace: Pacer) -> None:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy
    from torch.utils.data import DataLoader

    made: Any = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo"))
    made.launch()
    model = make_model()
    optimizer, scheduler = _optimizer(model)
    model, optimizer = made.setup(model, optimizer)
    loader: Any = made.setup_dataloaders(DataLoader(make_data(), batch_size=BATCH, shuffle=True))
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            loss = model(x, y)
            made.backward(loss)
            made.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            scheduler.step()
            loss.item()
            pace()


def hf_trainer(pace: Pacer) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Stamp(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            pace()

    def together(rows: list[Any]) -> dict[str, Any]:
        import torch

        return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}

    options = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        max_steps=ENDLESS,
        learning_rate=LR,
        weight_decay=0.01,
        logging_steps=ENDLESS,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer: Any = Trainer(
        model=_named_model(), args=options, train_dataset=make_data(), data_collator=together, callbacks=[Stamp()]
    )
    trainer.train()


def lightning(pace: Pacer) -> None:
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import DDPStrategy
    from torch.utils.data import DataLoader

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.net(*batch)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer, scheduler = _optimizer(self)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    class Stamp(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *_: Any) -> None:
            pace()

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer: Any = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_steps=ENDLESS,
        gradient_clip_val=1.0,
        callbacks=[Stamp()],
        enable_model_summary=False,
        **quiet,
    )
    trainer.fit(Module(), DataLoader(make_data(), batch_size=BATCH, shuffle=True))


def topspin(pace: Pacer) -> None:
    import trainer_topspin

    trainer_topspin.train(pace)


CANDIDATES = {
    "raw ddp": raw_ddp,
    "shoal": shoal,
    "accelerate": accelerate,
    "fabric": fabric,
    "hf trainer": hf_trainer,
    "lightning": lightning,
    "topspin": topspin,
}


def make_model() -> Any:
    """About 10.5 M parameters; its output is the loss."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
            self.layers = torch.nn.Sequential(*(part for pair in layers for part in pair))

        def forward(self, x: Any, y: Any) -> Any:
            return torch.nn.functional.mse_loss(self.layers(x), y)

    torch.manual_seed(0)
    return Net()


def _named_model() -> Any:
    """Return the model with the arguments that Hugging Face's Trainer passes."""
    import torch

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": self.net(x, labels)}

    return Named()


def _optimizer(model: Any) -> tuple[Any, Any]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01, fused=True)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / ENDLESS))


def make_data() -> Any:
    import torch

    class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self._pool = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(1))

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> tuple[Any, Any]:
            return self._pool[index % 64], self._pool[(index + 1) % 64]

    return Samples()


def main() -> None:
    # What frameworks print must not get between the numbers.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    pace = Pacer(int(sys.argv[2]), channel)
    with contextlib.suppress(BrokenPipeError):
        CANDIDATES[sys.argv[1]](pace)


if __name__ == "__main__":
    main()
