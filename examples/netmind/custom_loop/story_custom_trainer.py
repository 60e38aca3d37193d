"""A training loop of one's own, with the lines of NetMind's guide in it: which page does a question belong to?

python story_custom_trainer.py --data squad
shoal training run story --dataset squad --accels 2 -- story_custom_trainer.py
"""

# ruff: noqa
# fmt: off

import argparse
import json
import os
import time

import torch
from NetmindMixins.Netmind import nmp, NetmindOptimizer, NetmindDistributedModel


def setup_args():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--data', type=str, required=False, help=''
    )
    return parser.parse_known_args()[0]

training_args = setup_args()
training_args.num_train_epochs = 4

with open(os.path.join(training_args.data, "SQuAD/train-v1.1.json"), "r") as f:
    train = json.load(f)


def encode(text, length=40):
    codes = list(text.encode()[:length])
    return codes + [0] * (length - len(codes))


pages = train["data"]
rows = [(encode(q["question"]), label) for label, page in enumerate(pages) for q in page["paragraphs"][0]["qas"]]
questions = torch.utils.data.TensorDataset(torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows]))
train_set, valid_set = torch.utils.data.random_split(questions, [160, 32], generator=torch.Generator().manual_seed(0))

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.EmbeddingBag(256, 32, padding_idx=0),
    torch.nn.Linear(32, 64),
    torch.nn.ReLU(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(64, len(pages)),
)

nmp.init(use_ddp=True)

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
model.to(device)

sampler = torch.utils.data.distributed.DistributedSampler(train_set, seed=0)
train_data = torch.utils.data.DataLoader(train_set, batch_size=8, sampler=sampler)
valid_data = torch.utils.data.DataLoader(valid_set, batch_size=8)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, training_args.num_train_epochs * len(train_data))

ddp_model = NetmindDistributedModel(
    torch.nn.parallel.DistributedDataParallel(model)
)
optimizer = NetmindOptimizer(optimizer)

nmp.init_train_bar(max_steps=1000)

training_stats = {}
for epoch in range(training_args.num_train_epochs):
    sampler.set_epoch(epoch)
    started = time.perf_counter()
    model.train()
    total_loss = 0
    for train_step, batch in enumerate(train_data):
        optimizer.zero_grad()
        inputs, labels = (tensor.to(device) for tensor in batch)
        loss = torch.nn.functional.cross_entropy(ddp_model(inputs), labels)
        loss.backward()
        total_loss += loss.item()
        optimizer.step()
        scheduler.step()  # You may or may not have a scheduler

        # REQUIRED ADDITION BELOW
        monitor_metrics = {
            "loss": loss.item(),
            "Learning rate": scheduler.get_last_lr()[0]  # remove if you don't have a scheduler
        }
        nmp.step(monitor_metrics)

    average_training_loss_per_batch = total_loss / len(train_data)
    training_time = time.perf_counter() - started
    started = time.perf_counter()
    model.eval()
    valid_loss = right = 0
    for train_step, batch in enumerate(valid_data):
        inputs, labels = (tensor.to(device) for tensor in batch)
        with torch.no_grad():
            outputs = model(inputs)
        valid_loss += torch.nn.functional.cross_entropy(outputs, labels).item()
        right += (outputs.argmax(1) == labels).sum().item()

    average_validation_loss_per_batch = valid_loss / len(valid_data)
    average_validation_accuracy_per_epoch = right / len(valid_set)
    valid_time = f"{time.perf_counter() - started:.3f} s"
    training_stats[f"epoch_{epoch + 1}"] = {
        "training_loss": average_training_loss_per_batch,
        "valid_loss": average_validation_loss_per_batch,
        "valid_accuracy": average_validation_accuracy_per_epoch,
        "training_time": training_time,
        "valid_time": valid_time
    }
    nmp.evaluate(training_stats[f"epoch_{epoch + 1}"])

nmp.finish_training()
