"""The Hugging Face Trainer with the lines of NetMind's guide in it: a tiny GPT-2 that learns to tell stories.

    python story_hf_trainer.py --data stories --max_steps 40
    shoal training run story --dataset stories --accels 2 -- story_hf_trainer.py --max_steps 40

It is written for the libraries in requirements.txt, which a job gets by itself.
"""

# ruff: noqa
# fmt: off

from dataclasses import dataclass

import torch

from NetmindMixins.Netmind import nmp, NetmindTrainerCallback
from transformers import TrainingArguments, HfArgumentParser

@dataclass
class ModelTrainingArguments(TrainingArguments):
    data: str = None
    max_steps: int = 1000
    output_dir: str = "story-model"
    per_device_train_batch_size: int = 8
    learning_rate: float = 5e-3
    logging_steps: int = 5
    eval_strategy: str = "steps"
    eval_steps: int = 20
    save_steps: int = 10
    report_to: str = "none"
    dataloader_pin_memory: bool = False

parser = HfArgumentParser(ModelTrainingArguments)
training_args = parser.parse_args_into_dataclasses(return_remaining_strings=True)[0]

from datasets import load_dataset
data = load_dataset(training_args.data)

nmp.init(use_ddp=True)

import transformers

class CustomTrainerCallback(NetmindTrainerCallback):
    def __init__(self):
        super().__init__()

    '''
    Add custom training metrics
    '''

    def on_step_end(
        self, args: transformers.TrainingArguments, 
        state: transformers.TrainerState,
        control: transformers.TrainerControl, **kwargs
    ):
        kwargs["custom_metrics"] = {}
        kwargs["custom_metrics"]["letters seen"] = state.global_step * args.train_batch_size * LENGTH
        return super().on_step_end(args, state, control, **kwargs)

    '''
    Add custom evaluation metrics
    '''

    def on_evaluate(
        self, args: transformers.TrainingArguments, 
        state: transformers.TrainerState,
        control: transformers.TrainerControl, **kwargs
    ):
        kwargs["custom_metrics"] = {}
        kwargs["custom_metrics"]["perplexity"] = 2.718281828 ** kwargs["metrics"]["eval_loss"]
        kwargs["custom_metrics"]["teller"] = "tiny GPT-2"
        return super().on_evaluate(args, state, control, **kwargs)


LENGTH = 64


def encode(row):
    codes = list(row["text"].encode()[:LENGTH])
    padding = LENGTH - len(codes)
    return {"input_ids": codes + [0] * padding, "labels": codes + [-100] * padding}


stories = data.map(encode, remove_columns=["text"])
transformers.set_seed(0)
model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(vocab_size=128, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=training_args.learning_rate)
scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 5, training_args.max_steps)

from transformers import Trainer


trainer = Trainer(
    model=model,
    tokenizer=None,
    args=training_args,
    train_dataset=stories["train"],
    eval_dataset=stories["validation"],
    optimizers=(optimizer, scheduler),
    data_collator=transformers.default_data_collator,
    callbacks=[CustomTrainerCallback]
)
trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
trainer.remove_callback(transformers.trainer_callback.ProgressCallback)

trainer.train()

nmp.finish_training()
