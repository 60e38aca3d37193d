"""Train the character GPT with plain PyTorch DDP. Runs alone, under torchrun, or through Shoal, unchanged:

python train.py
torchrun --nproc-per-node 2 train.py
shoal training run first --nodes 2 --accels 2 -f -- train.py
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from corpus import text
from model import CharGPT
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16, help="per worker")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("OUTPUT_DIR", "output")))
    args = parser.parse_args()

    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else torch.device("cpu")
    )
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    corpus = text()
    letters = sorted(set(corpus))
    data = torch.tensor([letters.index(c) for c in corpus])
    torch.manual_seed(0)
    model = CharGPT(len(letters), args.context).to(device)
    trained = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=args.lr)
    batches = torch.Generator().manual_seed(1000 + rank)  # every worker draws its own samples

    for step in range(1, args.steps + 1):
        starts = torch.randint(len(data) - args.context - 1, (args.batch_size,), generator=batches)
        batch = torch.stack([data[s : s + args.context + 1] for s in starts]).to(device)
        loss = trained(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step == 1):
            print(f"step {step}/{args.steps}  loss {loss.item():.3f}", flush=True)

    if rank == 0:
        args.output.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), args.output / "model.pt")
        prompt = torch.tensor([[letters.index(c) for c in "the "]], device=device)
        print("sample:", "".join(letters[i] for i in model.write(prompt, 120)[0].tolist()), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
