"""Tell two spirals apart: a small network with a learning rate, a width and a depth to be found. Two seconds a trial.

python train.py --lr 0.01 --hidden 32
shoal sweep run spirals --file sweep.yaml -f
"""

import argparse
import math
from itertools import pairwise

import torch

import shoal


def spirals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    turn = torch.rand(count, generator=draw).sqrt() * 3 * math.pi
    side = torch.randint(2, (count,), generator=draw)
    angle = turn + side * math.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / (3 * math.pi)
    return points + 0.02 * torch.randn(count, 2, generator=draw), side


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=27)
    args = parser.parse_args()

    torch.set_num_threads(1)  # so small a network gains nothing from more
    run = shoal.init(seed=0)
    widths = [2] + [args.hidden] * args.depth
    layers = [part for ends in pairwise(widths) for part in (torch.nn.Linear(*ends), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(args.hidden, 2))
    size = sum(p.numel() for p in model.parameters())
    if size > 50_000:
        shoal.skip_trial(f"the model has {size:,} parameters, and 50,000 are enough")
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loss_of = torch.nn.CrossEntropyLoss()
    x, y = spirals(2000, seed=1)
    test_x, test_y = spirals(1000, seed=2)

    for epoch in range(args.epochs):
        for batch in torch.randperm(len(x)).split(100):
            loss = loss_of(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
            if run.should_stop:  # a sweep ends trials that fall behind
                return
        with torch.no_grad():
            guess = model(test_x)
        error = (guess.argmax(1) != test_y).float().mean()
        run.evaluate({"eval/loss": loss_of(guess, test_y), "eval/error": error})
        print(f"epoch {epoch + 1}/{args.epochs}  error {error:.3f}", flush=True)
    run.finish()


if __name__ == "__main__":
    main()
