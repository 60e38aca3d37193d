"""Train a small language model on sums in words, alone or together with all who join:

python train.py --task gpt
shoal swarm create sums --target-batch-size 64 -- train.py --task mlm
"""

import argparse

import torch
from model import LetterModel
from sums import Sums
from torch.utils.data import DataLoader

import shoal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["gpt", "mlm"], default="gpt")
    parser.add_argument("--steps", type=int, default=1000, help="of the whole swarm")
    parser.add_argument("--batch-size", type=int, default=32, help="of this peer alone")
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    run = shoal.init(parallel="swarm", seed=1)
    model = LetterModel(args.task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    loader = DataLoader(Sums(args.task), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, loader)
    for tokens, targets in run.loop(loader, epochs=1000):
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.step(loss=loss)
        if (run.swarm or run).global_step >= args.steps:
            break
    loss = held_out_loss(model, args.task)
    run.evaluate(loss=loss)
    print(f"held-out loss {loss:.4f}", flush=True)
    run.finish()


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, task: str) -> float:
    """Return the loss on sentences that are not used for training."""
    data = Sums(task, 512, first=1_000_000)
    tokens, targets = zip(*(data[index] for index in range(len(data))), strict=True)
    return float(model(torch.stack(tokens), torch.stack(targets)))


if __name__ == "__main__":
    main()
