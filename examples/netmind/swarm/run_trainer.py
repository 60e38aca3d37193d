# ruff: noqa
# fmt: off
# mypy: ignore-errors
# As printed in NetMind's guide to its swarm mode, but for the imports, the arguments and the model.
from NetmindMixins.Netmind import htp
from arguments import (
    AveragerArguments,
    CollaborationArguments,
    DatasetArguments,
    ModelTrainingArguments,
    ProgressTrackerArguments,
)
from data import get_data
from hivemind.utils.logging import use_hivemind_log_handler
from model import get_model
from optimizer import get_optimizer
from trainer import train
from transformers import DataCollatorForLanguageModeling, HfArgumentParser, set_seed

use_hivemind_log_handler("in_root_logger")

parser = HfArgumentParser(
    (ModelTrainingArguments, DatasetArguments, CollaborationArguments, AveragerArguments, ProgressTrackerArguments)
)
training_args, dataset_args, collaboration_args, averager_args, tracker_args = parser.parse_args_into_dataclasses()
set_seed(training_args.seed)
model, tokenizer = get_model(dataset_args)
model.to(training_args.device)

tokenized_datasets = get_data(dataset_args)

data_collator = DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm_probability=0.15)

optimizer, collaborative_call, local_public_key = get_optimizer(model, training_args, collaboration_args, averager_args, tracker_args)

train(tokenized_datasets, model, tokenizer, training_args, data_collator, optimizer, collaborative_call, local_public_key)

htp.on_train_end()
