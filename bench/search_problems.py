"""Small real trainings for bench/search.py: nets of a few thousand weights on data made up from a fixed seed, a quarter of a second each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

REPORTS = 27
STEPS = 10
"""Steps between two reports."""
BATCH = 64
Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    axes: dict[str, list[float]]
    """The grid. Ranges go from the least to the most of each, by magnitude where `logs` says so."""
    logs: frozenset[str]
    data: Callable[[], tuple[Tensor, Tensor]]
    """Inputs and targets; the last quarter is what it is judged by."""
    model: Callable[[Values], nn.Module]
    optimizer: Callable[[nn.Module, Values], torch.optim.Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor]

    @property
    def grid_size(self) -> int:
        return math.prod(len(values) for values in self.axes.values())


def train(problem: Problem, values: Values) -> Iterator[float]:
    """The loss on what it has not learnt from, after every `STEPS` steps. The same values give the same losses."""
    torch.manual_seed(0)
    x, y = problem.data()
    split = len(x) * 3 // 4
    model = problem.model(values)
    optimizer = problem.optimizer(model, values)
    order = torch.Generator().manual_seed(1)
    noise = torch.get_rng_state()
    for _ in range(REPORTS):
        torch.set_rng_state(noise)  # trials take turns: each goes on with its own dice
        model.train()
        for _ in range(STEPS):
            picked = torch.randint(split, (BATCH,), generator=order)
            optimizer.zero_grad()
            problem.loss(model(x[picked]), y[picked]).backward()
            optimizer.step()
        noise = torch.get_rng_state()
        model.eval()
        with torch.no_grad():
            judged = float(problem.loss(model(x[split:]), y[split:]))
        yield judged


def regression() -> Problem:
    def data() -> tuple[Tensor, Tensor]:
        x = torch.randn(1024, 6, generator=torch.Generator().manual_seed(2))
        y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * x[:, 3]
        return x, (y + 0.05 * x[:, 4] * x[:, 5])[:, None]

    def model(values: Values) -> nn.Module:
        width = int(values["width"])
        return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    return Problem(
        name="regression",
        axes={"lr": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0], "momentum": [0.0, 0.5, 0.9], "width": [8, 24, 64]},
        logs=frozenset({"lr", "width"}),
        data=data,
        model=model,
        optimizer=lambda m, v: torch.optim.SGD(m.parameters(), lr=v["lr"], momentum=v["momentum"]),
        loss=functional.mse_loss,
    )


def spirals() -> Problem:
    def data() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        along = 0.5 + 3 * math.pi * torch.rand(1024, generator=generator).sqrt()
        arm = torch.randint(2, (1024,), generator=generator)
        angle = along + math.pi * arm
        x = torch.stack([along * angle.cos(), along * angle.sin()], 1) / 5
        return x + 0.05 * torch.randn(1024, 2, generator=generator), arm

    def model(values: Values) -> nn.Module:
        width = int(values["width"])
        return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    return Problem(
        name="spirals",
        axes={"lr": [1e-3, 3e-3, 1e-2, 3e-2, 0.1], "width": [8, 24, 64], "weight_decay": [1e-4, 1e-2, 1.0]},
        logs=frozenset({"lr", "width", "weight_decay"}),
        data=data,
        model=model,
        optimizer=lambda m, v: torch.optim.AdamW(m.parameters(), lr=v["lr"], weight_decay=v["weight_decay"]),
        loss=functional.cross_entropy,
    )


def characters() -> Problem:
    """The next of the letters of made-up words, from the three before it."""
    words = ("shoal", "herring", "reef", "current", "swarm", "tide", "kelp", "salmon", "school", "anchovy")
    letters = sorted(set("".join(words)) | {" "})

    def data() -> tuple[Tensor, Tensor]:
        drawn = torch.randint(len(words), (400,), generator=torch.Generator().manual_seed(4))
        text = torch.tensor([letters.index(c) for c in " ".join(words[i] for i in drawn)])
        return text.unfold(0, 4, 1)[:1600, :3], text[3:1603]

    def model(values: Values) -> nn.Module:
        size, width = int(values["embedding"]), 48
        return nn.Sequential(
            nn.Embedding(len(letters), size), nn.Flatten(), nn.Linear(3 * size, width), nn.ReLU(),
            nn.Dropout(values["dropout"]), nn.Linear(width, len(letters)),
        )  # fmt: skip

    return Problem(
        name="characters",
        axes={"lr": [3e-3, 1e-2, 3e-2, 0.1, 0.3], "embedding": [2, 6, 16], "dropout": [0.0, 0.2, 0.5]},
        logs=frozenset({"lr", "embedding"}),
        data=data,
        model=model,
        optimizer=lambda m, v: torch.optim.Adam(m.parameters(), lr=v["lr"]),
        loss=functional.cross_entropy,
    )


def pictures() -> Problem:
    """A bar across, down or aslant, somewhere among noise."""

    def data() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(5)
        kinds = torch.randint(3, (768,), generator=generator)
        places = torch.randint(8, (768,), generator=generator)
        x = 0.6 * torch.randn(768, 1, 8, 8, generator=generator)
        line = torch.arange(8)
        for i, (kind, place) in enumerate(zip(kinds.tolist(), places.tolist(), strict=True)):
            rows = (torch.full((8,), place), line, (line + place) % 8)[kind]
            columns = (line, torch.full((8,), place), line)[kind]
            x[i, 0, rows, columns] += 1
        return x, kinds

    def model(values: Values) -> nn.Module:
        channels = int(values["channels"])
        return nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(),
            nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 3),
        )  # fmt: skip

    return Problem(
        name="pictures",
        axes={"lr": [1e-2, 3e-2, 0.1, 0.3, 1.0], "momentum": [0.0, 0.5, 0.9], "channels": [3, 6, 12]},
        logs=frozenset({"lr", "channels"}),
        data=data,
        model=model,
        optimizer=lambda m, v: torch.optim.SGD(m.parameters(), lr=v["lr"], momentum=v["momentum"]),
        loss=functional.cross_entropy,
    )


PROBLEMS = {problem.name: problem for problem in (regression(), spirals(), characters(), pictures())}
