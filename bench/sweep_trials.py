"""Two trivial trials of bench/sweep.py: one without torch, and one that imports it and makes ten steps.

python sweep_trials.py plain|torch ROUND --x 3
"""

from __future__ import annotations

import os
import sys


def plain(x: float) -> float:
    return (x - 21) ** 2 / 100


def torch(x: float) -> float:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001 * (1 + x))
    inputs = torch.randn(32, 8)
    for _ in range(10):
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss)


def main() -> None:
    loss = {"plain": plain, "torch": torch}[sys.argv[1]](float(sys.argv[4]))
    if "SHOAL_TRIAL" in os.environ:
        import shoal

        with shoal.init() as run:
            run.evaluate({"loss": loss})
    print("loss", loss)


if __name__ == "__main__":
    main()
