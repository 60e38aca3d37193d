"""A causal language model trained with the Hugging Face Trainer, with the arguments of a usual example script.

With HOLD_UNTIL in its environment it waits at step 250 until that file exists, so that a test sees it while it runs.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from datasets import load_from_disk
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


@dataclass
class Arguments:
    dataset_name: str = ""
    tokenized_dataset_load_dir: str = ""
    model_name_or_path: str = ""
    resume: str | None = None


class Hold(TrainerCallback):
    """Waits at step 250."""

    def on_step_end(self, args, state, control, **kwargs):
        while state.global_step == 250 and not Path(os.environ["HOLD_UNTIL"]).exists():
            time.sleep(0.05)


def main() -> None:
    args, training = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()
    data = load_from_disk(args.tokenized_dataset_load_dir)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model_name_or_path))
    trainer = Trainer(model=model, args=training, train_dataset=data["train"], eval_dataset=data["validation"])
    if "HOLD_UNTIL" in os.environ:
        trainer.add_callback(Hold())
    result = trainer.train(resume_from_checkpoint=args.resume)
    print(f"DONE global_step={trainer.state.global_step} train_loss={result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
