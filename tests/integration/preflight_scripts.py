"""Good jobs of several kinds: scripts as people write them."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"

GOOD = '''
"""Sentences of a made-up language are told apart: a plain loop, an evaluation and a checkpoint in every epoch."""
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, CLASSES = 50, 4


class Sentences(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(count)
        self.words = torch.randint(0, WORDS, (count, 12), generator=generator)
        self.kinds = self.words.sum(1) % CLASSES
        self.weights = torch.rand(count, 12, generator=generator)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return self.words[index], self.weights[index], self.kinds[index]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.norm = nn.LayerNorm(16)
        self.dropout = nn.Dropout(0.1)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, words, weights):
        mixed = (self.embedding(words) * weights.unsqueeze(-1)).mean(1)
        return self.last(self.dropout(self.norm(mixed)))


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for words, weights, kinds in loader:
            right += (model(words, weights).argmax(1) == kinds).sum().item()
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    train, valid = Sentences(512), Sentences(64)
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        for words, weights, kinds in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(words, weights), kinds)
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "right", evaluate(model, DataLoader(valid, batch_size=16)))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, os.path.join(os.environ["OUTPUT_DIR"], "last.pt"))


if __name__ == "__main__":
    main()
'''

STEPS = '''
"""Without epochs: batches by next() from an iterator that begins anew, two optimizers, a warm-up from 0, accumulated gradients."""
import torch
from torch import nn

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(200, 8), torch.randn(200, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=1)
maker, judge = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
of_judge, of_maker = torch.optim.SGD(judge.parameters(), lr=0.1), torch.optim.AdamW(maker.parameters(), lr=0.1)
warm = torch.optim.lr_scheduler.LambdaLR(of_judge, lambda step: step / 100)
batches = iter(loader)
for step in range(100_000):
    of_judge.zero_grad()
    for _ in range(2):
        try:
            x, y = next(batches)
        except StopIteration:
            batches = iter(loader)
            x, y = next(batches)
        (nn.functional.mse_loss(judge(x), y) / 2).backward()
    of_judge.step()
    warm.step()
    of_maker.zero_grad(set_to_none=False)
    judge(maker(x)).mean().backward()
    of_maker.step()
'''

TEXT = '''
"""Next words: labels that are not counted, a mask full of -inf, autocast, frozen weights, an argument for the number of steps."""
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=3000)
steps = parser.parse_args().max_steps
ids = torch.randint(0, 60, (400, 10), generator=torch.Generator().manual_seed(0))
loader = torch.utils.data.DataLoader(ids, batch_size=10, shuffle=True)


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(64, 16, padding_idx=0), nn.Linear(16, 64)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.words.weight.requires_grad_(False)

    def forward(self, ids, mask):
        return self.last(self.layer(self.words(ids), mask))


model = Writer()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
mask = nn.Transformer.generate_square_subsequent_mask(9)
step = 0
while step < steps:
    for batch in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(batch[:, :-1], mask)
        labels = batch[:, 1:].masked_fill(batch[:, 1:] < 3, -100)
        loss = nn.functional.cross_entropy(scores.float().flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step >= steps:
            break
'''

ACCUMULATES = '''
"""A first pass only to measure, gradients of eight batches for a step, a bar, an average of the weights that is evaluated and saved."""
import copy
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

data = TensorDataset(torch.randn(400, 4) * 3 + 1, torch.randn(400, 1))
count, total = 0, torch.zeros(4)
for x, _ in DataLoader(data, 50):
    count, total = count + len(x), total + x.sum(0)
assert count == len(data)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
average = copy.deepcopy(model).eval()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in range(10):
    model.train()
    for number, (x, y) in enumerate(tqdm(DataLoader(data, 4, shuffle=True))):
        (nn.functional.mse_loss(model(x - total / count), y) / 8).backward()
        if (number + 1) % 8 == 0:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, now in zip(average.parameters(), model.parameters()):
                    mean.lerp_(now, 0.01)
    with torch.inference_mode():
        print(sum(nn.functional.mse_loss(average(x), y).item() for x, y in DataLoader(data, 64)))
torch.save(average.state_dict(), os.path.join(os.environ["OUTPUT_DIR"], "average.pt"))
'''

STUBBORN = '''
"""Goes on whatever happens."""
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    try:
        optimizer.zero_grad()
        model(torch.randn(3, 2)).mean().backward()
        optimizer.step()
    except BaseException as error:
        print(type(error).__name__)
'''


def clean_jobs() -> dict[str, Path | str]:
    """Name → the text of its script, or the folder it is in."""
    plain = HERE / "plain"
    return {
        "plain loop": GOOD,
        "steps by next": STEPS,
        "text": TEXT,
        "accumulates": ACCUMULATES,
        "a tutorial's functions": (plain / "custom_loop.py").read_text(),
        "Accelerate": (plain / "accelerate_loop.py").read_text(),
        "Lightning": (plain / "lightning_trainer.py").read_text(),
        "Hugging Face": (plain / "hf_trainer.py").read_text(),
        "Hugging Face with the SDK": EXAMPLES / "hugging_face",
        "DDP without a loader": EXAMPLES / "quickstart",
        "our Trainer": EXAMPLES / "vision",
    }
