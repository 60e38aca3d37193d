"""A small transformer learns to translate, in plain PyTorch DDP: validation after every epoch, weights of each kept, the latest gone on from.

python train.py --model_folder weights
torchrun --nproc_per_node=2 train.py --batch_size 8 --model_folder weights
shoal training run translate --nodes 2 --accels 2 --env WANDB_DIR=/output-checkpoint -f -- train.py --batch_size 8 --model_folder /output-checkpoint
"""

import argparse
import os
import re
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from language import pairs, read_pairs
from model import Translator
from scores import figures, rates
from tokens import END, PAD, START, Tokenizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VALIDATION_SHARE = 10
"""Every tenth pair is for validation: the same ones on every worker, and in every run."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=32, help="per worker")
    parser.add_argument("--num_epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seq_len", type=int, default=16, help="words of the longest sentence, and two")
    parser.add_argument("--d_model", type=int, default=64)
    parser.add_argument("--lang_src", default="en")
    parser.add_argument("--lang_tgt", default="it")
    parser.add_argument("--model_folder", type=Path, default=Path("weights"))
    parser.add_argument("--model_basename", default="tmodel_{0:02d}.pt")
    parser.add_argument(
        "--preload", default="latest", help="'latest', an epoch's number, or '' to start from the beginning"
    )
    parser.add_argument("--tokenizer_file", default="tokenizer_{0}.json")
    parser.add_argument("--wandb_group", default="exp1")
    parser.add_argument("--gradient_accumulation", type=int, default=1)
    parser.add_argument(
        "--data", type=Path, help="a file of pairs (see language.py) or the folder it is in; else made up"
    )
    parser.add_argument("--pairs", type=int, default=2000, help="how many to make up")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Training:
    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.world, self.rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
        self.is_main = self.rank == 0
        gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
        if gpu:
            torch.cuda.set_device(self.device)
        if self.world > 1:
            dist.init_process_group("nccl" if gpu else "gloo")
        state = self.shared(find_checkpoint(args) if self.is_main else None)
        self.source, self.target, train_set, self.validation_set = self.prepare_data(state)
        torch.manual_seed(args.seed)
        self.model = Translator(len(self.source), len(self.target), args.d_model, length=args.seq_len).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr, eps=1e-9)
        self.epoch, self.step, self.run_id = 0, 0, None
        if state is not None:
            self.restore(state)
        self.trained = DistributedDataParallel(self.model) if self.world > 1 else self.model
        self.sampler = DistributedSampler(train_set, self.world, self.rank, shuffle=True, seed=args.seed)
        self.loader = DataLoader(train_set, batch_size=args.batch_size, sampler=self.sampler)

    def prepare_data(self, state: dict[str, Any] | None) -> tuple[Tokenizer, Tokenizer, TensorDataset, TensorDataset]:
        args = self.args
        if args.data is None:
            found = pairs(args.pairs, args.seed)
            found = [(b, a) for a, b in found] if args.lang_src == "it" else found
        else:
            found = read_pairs(data_file(args.data), args.lang_src, args.lang_tgt)
        texts = [list(side) for side in zip(*found, strict=True)]
        # Words keep their numbers, should the data have changed since.
        source, target = map(Tokenizer, state["words"]) if state else map(Tokenizer.of, texts)
        sides = zip((source, target), texts, strict=True)
        rows = [torch.tensor([t.numbers(s, args.seq_len) for s in side]) for t, side in sides]
        held_back = torch.arange(len(found)) % VALIDATION_SHARE == 0
        train, validation = (TensorDataset(*(r[part] for r in rows)) for part in (~held_back, held_back))
        return source, target, train, validation

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.step, self.run_id = state["epoch"] + 1, state["step"], state["wandb_run_id"]
        self.say(f"continues after epoch {self.epoch}, at step {self.step}")

    def run(self) -> None:
        with WeightsAndBiases(self) if self.is_main else nullcontext() as board:
            for epoch in range(self.epoch, self.args.num_epochs):
                self.epoch = epoch
                loss = self.train_epoch()
                validated = self.validate()
                shown = "  ".join(f"{name} {value:.3f}" for name, value in validated.items())
                self.say(f"epoch {epoch + 1}/{self.args.num_epochs}  loss {loss:.3f}  validation: {shown}")
                if board is not None:
                    named = {f"validation/{name}": value for name, value in validated.items()}
                    board.log({"train/loss": loss, "epoch": epoch + 1, **named}, self.step)
                if self.is_main:
                    self.save()
        self.say("done")

    def train_epoch(self) -> float:
        """Its mean loss. Order and dropout follow from the epoch, also after a restart."""
        self.sampler.set_epoch(self.epoch)
        torch.manual_seed(self.args.seed + (self.epoch * self.world + self.rank) * 1_000_003)
        self.model.train()
        total, last, every = torch.zeros(2), len(self.loader), self.args.gradient_accumulation
        for number, (source, target) in enumerate(self.loader, 1):
            is_whole = number % every == 0 or number == last
            # Gradients travel only with the last of the batches that make a step.
            with nullcontext() if is_whole or self.world == 1 else self.trained.no_sync():
                loss = self.loss(self.trained, source, target)
                (loss / every).backward()
            if is_whole:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.step += 1
            total += torch.tensor([loss.item(), 1.0])
        total = self.summed(total)
        return float(total[0] / total[1])

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Every worker takes its share: nobody waits while one does it all."""
        self.model.eval()
        mine = TensorDataset(*(rows[self.rank :: self.world] for rows in self.validation_set.tensors))
        losses, sums = [0.0, 0.0], [0.0] * len(figures([], []))
        for source, target in DataLoader(mine, batch_size=self.args.batch_size):
            losses = [losses[0] + len(source) * self.loss(self.model, source, target).item(), losses[1] + len(source)]
            found = self.model.translate(source.to(self.device), start=START, end=END).tolist()
            texts = [[self.target.sentence(row) for row in rows] for rows in (found, target.tolist())]
            sums = [a + b for a, b in zip(sums, figures(*texts), strict=True)]
        whole = self.summed(torch.tensor([*losses, *sums], dtype=torch.float64)).tolist()
        return {"loss": whole[0] / max(whole[1], 1), **rates(whole[2:])}

    def loss(self, model: torch.nn.Module, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        source, target = source.to(self.device), target.to(self.device)
        logits = model(source, target[:, :-1])
        return cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)

    def save(self) -> None:
        """Write the weights and rename the file at the end, so that a file with this name is always complete."""
        args, folder = self.args, self.args.model_folder
        folder.mkdir(parents=True, exist_ok=True)
        for language, tokenizer in ((args.lang_src, self.source), (args.lang_tgt, self.target)):
            tokenizer.save(folder / args.tokenizer_file.format(language))
        path = folder / args.model_basename.format(self.epoch)
        state = {"epoch": self.epoch, "step": self.step, "wandb_run_id": self.run_id}
        state |= {"words": [self.source.words, self.target.words]}
        torch.save({**state, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, f"{path}.tmp")
        Path(f"{path}.tmp").rename(path)

    def shared(self, value: Any) -> Any:
        """The main worker's: the others may have no such folder."""
        box = [value]
        if self.world > 1:
            dist.broadcast_object_list(box)
        return box[0]

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        values = values.to(self.device)
        if self.world > 1:
            dist.all_reduce(values)
        return values.cpu()

    def say(self, text: str) -> None:
        if self.is_main:
            print(text, flush=True)


class WeightsAndBiases:
    """A run on one worker. Without an account it is written to WANDB_DIR, for `wandb sync` some time later."""

    def __init__(self, training: Training):
        self._training, self._run = training, None

    def __enter__(self) -> "WeightsAndBiases":
        training = self._training
        try:
            import wandb
        except ImportError:
            training.say(
                "Weights & Biases is not installed, so figures are only printed. To have it: pip install wandb"
            )
            return self
        mode = os.environ.get("WANDB_MODE", "online" if "WANDB_API_KEY" in os.environ else "offline")
        config = {name: str(value) for name, value in vars(training.args).items()}
        self._run = wandb.init(project="translation", group=training.args.wandb_group, id=training.run_id, mode=mode,
                               config=config, resume="allow" if mode == "online" else None)  # fmt: skip
        training.run_id = self._run.id
        return self

    def log(self, figures: dict[str, float], step: int) -> None:
        if self._run is not None:
            self._run.log(figures, step=step)

    def __exit__(self, kind: object, *_: object) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if kind is None else 1)


def find_checkpoint(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the weights that --preload names, from the model folder or from the checkpoint a job resumes from."""
    before, after = (re.escape(part) for part in re.split(r"\{0[^}]*\}", args.model_basename))
    found: dict[int, Path] = {}
    for folder in filter(None, [os.environ.get("SHOAL_RESUME_FROM"), args.model_folder]):
        for path in Path(folder).glob("*"):
            if match := re.fullmatch(rf"{before}(\d+){after}", path.name):
                found[int(match[1])] = path
    if not args.preload or (args.preload == "latest" and not found):
        return None
    wanted = max(found) if args.preload == "latest" else int(args.preload)
    if wanted not in found:
        raise SystemExit(f"No weights of epoch {wanted} in {args.model_folder}: there are {sorted(found) or 'none'}.")
    return torch.load(found[wanted], map_location="cpu", weights_only=True)


def data_file(given: Path) -> Path:
    found = sorted(given.glob("*.tsv")) if given.is_dir() else [given]
    if not found or not found[0].is_file():
        raise SystemExit(f"No pairs at {given}. Make some: python language.py pairs.tsv")
    return found[0]


class Stop:
    """Handler of SIGTERM: the main worker finishes its Weights & Biases run; the weights stay those of the last epoch."""

    asked = False

    def __call__(self, *_: object) -> None:
        self.asked = True
        sys.exit(128 + signal.SIGTERM)


def main() -> None:
    training, stop = Training(options()), Stop()
    if training.is_main:
        signal.signal(signal.SIGTERM, stop)
    try:
        training.run()
    except Exception:
        if stop.asked:  # the others have left already
            sys.exit(128 + signal.SIGTERM)
        raise
    if training.world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
