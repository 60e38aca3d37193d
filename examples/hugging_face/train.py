"""A tiny GPT-2 with the Hugging Face Trainer, watched by Shoal: one import and one argument.

python train.py --max_steps 60
shoal training run story --accels 2 -- train.py --max_steps 60
"""

import os
from dataclasses import dataclass

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

from shoal.integrations.hf import ShoalCallback

LENGTH = 32


@dataclass
class Arguments(TrainingArguments):
    output_dir: str = os.environ.get("OUTPUT_DIR", "checkpoints")
    max_steps: int = 200
    per_device_train_batch_size: int = 8
    learning_rate: float = 3e-3
    logging_steps: float = 5
    save_steps: float = 20
    eval_strategy: str = "steps"
    eval_steps: float = 20
    report_to: str = "none"


class Counting(torch.utils.data.Dataset):
    """Sequences that count up from somewhere, in steps of one to five."""

    def __init__(self, size: int):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (index * 7 + torch.arange(LENGTH) * (1 + index % 5)) % 128
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    args = HfArgumentParser(Arguments).parse_args_into_dataclasses()[0]
    config = GPT2Config(
        vocab_size=128, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(args.seed)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Counting(1024),
        eval_dataset=Counting(64),
        callbacks=[ShoalCallback],
    )
    trainer.train()
    print(f"done at step {trainer.state.global_step}")


if __name__ == "__main__":
    main()
