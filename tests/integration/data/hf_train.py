"""A causal language model trained with the Hugging Face Trainer, with the arguments of a usual example script."""

from dataclasses import dataclass

from datasets import load_from_disk
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


@dataclass
class Arguments:
    dataset_name: str = ""
    tokenized_dataset_load_dir: str = ""
    model_name_or_path: str = ""
    resume: str | None = None


def main() -> None:
    args, training = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()
    data = load_from_disk(args.tokenized_dataset_load_dir)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model_name_or_path))
    trainer = Trainer(model=model, args=training, train_dataset=data["train"], eval_dataset=data["validation"])
    result = trainer.train(resume_from_checkpoint=args.resume)
    print(f"DONE global_step={trainer.state.global_step} train_loss={result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
