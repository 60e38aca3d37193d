"""A tiny GPT-2 with the Hugging Face Trainer, and a callback of its own."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Counting(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = (index + torch.arange(16)) % 32
        return {"input_ids": ids, "labels": ids}


class Quiet(TrainerCallback):
    pass


args = TrainingArguments(
    output_dir="checkpoints", max_steps=6, logging_steps=2, save_strategy="no", report_to="none", use_cpu=True
)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=Counting(),
    callbacks=[Quiet],  # ours
)
trainer.train()
