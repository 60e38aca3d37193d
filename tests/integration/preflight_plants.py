"""The faults that are planted in a good job, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from preflight_scripts import GOOD


@dataclass(frozen=True)
class Plant:
    rule: str
    old: str = ""
    new: str = ""
    at: str = ""
    """A part of the line it is to be found at; empty where there is no such line."""
    args: tuple[str, ...] = ()
    asked: dict[str, Any] = field(default_factory=dict)
    checked: bool = False
    """Found by `shoal check` too, before anything runs."""

    @property
    def text(self) -> str:
        assert self.old in GOOD
        return GOOD.replace(self.old, self.new, 1) if self.old else GOOD


UNUSED_IN_DDP = (
    GOOD.replace(
        "self.last = nn.Linear(16, CLASSES)", "self.last, self.spare = nn.Linear(16, CLASSES), nn.Linear(4, 4)"
    )
    .replace("model = Reader()", "model = nn.parallel.DistributedDataParallel(Reader())")
    .replace(
        "    train, valid",
        '    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)\n    train, valid',
    )
    .replace("import torch\n", "import torch\nimport torch.distributed as dist\n", 1)
)

_LOSS = "loss = nn.functional.cross_entropy(model(words, weights), kinds)"
_OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)"
_LAST = "self.last = nn.Linear(16, CLASSES)"

PLANTS: dict[str, Plant] = {
    "a package that is not there": Plant(
        "import", "import argparse\n", "import argparse\nimport torch_geometrically\n", at="torch_geometrically"
    ),
    "an option it does not take": Plant("arguments", args=("--learning-rate", "1"), at="parse_args()", checked=True),
    "data that is not there": Plant(
        "file",
        "train, valid = Sent",
        'open("words/train.txt")\n    train, valid = Sent',
        at="words/train.txt",
        checked=True,
    ),
    "a sample that cannot be loaded": Plant(
        "data", "return self.words[index], self", "return self.words[index + 600], self", at="index + 600"
    ),
    "one class too few": Plant("labels", _LAST, "self.last = nn.Linear(16, CLASSES - 1)", at="cross_entropy("),
    "labels counted from one": Plant("labels", "% CLASSES\n", "% CLASSES + 1\n", at="cross_entropy("),
    "more words than rows": Plant(
        "token-ids", "nn.Embedding(WORDS, 16)", "nn.Embedding(WORDS - 5, 16)", at="self.embedding(words)"
    ),
    "a logarithm of zero": Plant("not-finite", _LOSS, f"{_LOSS} + torch.log(words.min() * 0.0)", at="loss.backward()"),
    "a learning rate that blows up": Plant("not-finite", "lr=args.lr)", "lr=1e30)", at="loss.backward()"),
    "NaN in the data": Plant(
        "data-not-finite",
        "self.weights = torch.rand(count, 12, generator=generator)",
        "self.weights = torch.full((count, 12), float('nan'))",
        at="model(words, weights)",
    ),
    "gradients that are never cleared": Plant(
        "no-zero-grad", "            optimizer.zero_grad()\n", "", at="optimizer.step()"
    ),
    "a learning rate of zero": Plant("learning-rate", args=("--lr", "0")),
    "the optimizer of another model": Plant(
        "not-optimized",
        _OPTIMIZER,
        "optimizer = torch.optim.SGD(Reader().parameters(), lr=args.lr)",
        at="optimizer.step()",
    ),
    "weights nobody uses": Plant("unused-parameters", _LAST, f"{_LAST}\n        self.spare = nn.Linear(16, 4)"),
    "softmax before cross entropy": Plant(
        "softmax-twice",
        "model(words, weights), kinds)",
        "model(words, weights).softmax(1), kinds)",
        at="cross_entropy(",
    ),
    "never back to training": Plant("eval-mode", "        model.train()\n", "        model.eval()\n"),
    "an evaluation with dropout": Plant(
        "train-mode", "    model.eval()\n", "    model.train()\n", at="model(words, weights)"
    ),
    "the first batch again and again": Plant(
        "same-batch",
        "in loader:\n            optimizer",
        "in [next(iter(loader))] * 40:\n            optimizer",
    ),
    "fewer samples than a batch": Plant(
        "never-steps", "shuffle=True)", "shuffle=True, drop_last=True)", args=("--batch-size", "1000"), at="in loader:"
    ),
    "shapes that only seem to fit": Plant(
        "shapes", _LOSS, "loss = nn.functional.mse_loss(model(words, weights)[:, :1], kinds.float())", at="mse_loss("
    ),
    "an evaluation that fails": Plant("shapes", ".argmax(1) == kinds", ".argmax(1) @ kinds.view(1, -1)", at="argmax"),
    "more memory than there is": Plant(
        "memory",
        "mixed = (self.emb",
        "torch.ones(4 << 28, len(words))\n        mixed = (self.emb",
        at="4 << 28",
        asked={"memory": 8 << 30},
    ),
    "more workers than memory": Plant("memory", asked={"accels": 100_000}),
    "no room for checkpoints": Plant("disk", asked={"disk": 1000}),
    "a checkpoint that cannot be made": Plant(
        "checkpoint", '"epoch": epoch}', '"epoch": lambda: epoch}', at="torch.save"
    ),
    "a checkpoint nobody keeps": Plant(
        "kept-nowhere", 'os.path.join(os.environ["OUTPUT_DIR"], "last.pt")', '"last.pt"', at="torch.save", checked=True
    ),
}
