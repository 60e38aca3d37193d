"""A worker that trains on the batches it is told, one step for each line it reads, and tells the gradient of each.

Arguments: a JSON list of trainings, each {"parallel", "amp", "true_gradient", "calls", "size", "port"}, and a directory. With
a size, a training goes once through a dataset of as many samples, dealt out by the run. Lines read otherwise: {"counts": [[…] for each rank], "seed"} or
{"over": true}, which ends a training. Lines written by rank 0: {"gradient", "loss", "seen"}; {"reason"} at the end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import torch
from torch.nn import functional

from shoal.train import Params, Trainer

RANK = int(os.environ.get("RANK", "0"))
ACCUMULATE, BATCH_SIZE = 3, 2


class Network(torch.nn.Module):
    """May be called in one go, or twice: for what lies inside, and with that for the output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)

    def forward(self, x=None, inside=None, only_inside=False):
        inside = torch.tanh(self.first(x)) if inside is None else inside
        return inside if only_inside else self.second(inside)


def samples_of(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def loss_of(model, batch, calls=1):
    x, y = batch
    logits = model(x) if calls == 1 else model(inside=model(x, only_inside=True))
    return functional.cross_entropy(logits.float(), y)


def whole(gradient):
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


class Told(Trainer):
    calls, size = 1, 0

    def training_data(self):
        return self.dealt() if self.size else self.told()

    def dealt(self):
        dataset = torch.utils.data.TensorDataset(*samples_of(self.size, 0))
        return torch.utils.data.DataLoader(dataset, batch_size=self.params.batch_size)

    def told(self):
        """This rank's mini-batches of what is told: rank by rank, one after the other, they are one large batch."""
        for line in sys.stdin:
            step = json.loads(line)
            if step.get("over"):
                return
            counts = step["counts"]
            x, y = samples_of(sum(map(sum, counts)), step["seed"])
            parts = [count for of_rank in counts for count in of_rank]
            pairs = list(zip(x.split(parts), y.split(parts), strict=True))
            yield from ((0, pair) for pair in pairs[RANK * ACCUMULATE : (RANK + 1) * ACCUMULATE])

    def train_batch(self, batch):
        return loss_of(self.model, batch, self.calls)

    def on_step(self, figures):
        gradients = [whole(p.grad).flatten() for p in self.model.parameters()]
        if RANK == 0:
            tell({"gradient": torch.cat(gradients).tolist(), "loss": figures["loss"], "seen": self.state.seen})


def tell(what):
    os.write(TELLS_TO, (json.dumps(what) + "\n").encode())


def main():
    torch.set_num_threads(1)
    for training in json.loads(sys.argv[1]):
        os.environ["MASTER_PORT"] = str(training["port"])
        os.chdir(tempfile.mkdtemp(dir=sys.argv[2]))
        params = Params(
            epochs=1,
            train_samples=10**9,
            batch_size=BATCH_SIZE,
            accumulate=ACCUMULATE,
            true_gradient=training["true_gradient"],
            amp=training["amp"],
            parallel="auto" if training["parallel"] == "tp" else training["parallel"],
            mesh={"tp": int(os.environ["WORLD_SIZE"])} if training["parallel"] == "tp" else None,
            lr=1e-12,
            clip_norm=None,
            decay="none",
            keep_models=1,
        )
        model = Network()
        trainer = Told(params, model, torch.optim.SGD(model.parameters(), lr=params.lr))
        trainer.calls, trainer.size = training["calls"], training["size"]
        outcome = trainer.fit()
        if RANK == 0:
            tell({"reason": outcome.reason})


if __name__ == "__main__":
    TELLS_TO = os.dup(1)
    os.dup2(2, 1)
    main()
