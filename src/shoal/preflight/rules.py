"""Rules of the preflight: severity, reason and remedy of every finding."""

from __future__ import annotations

from typing import NamedTuple

ERROR, WARNING, HINT = "error", "warning", "hint"


class Rule(NamedTuple):
    severity: str
    why: str
    fix: str


_WOULD_END = "The job would fail there, after waiting in the queue."

RULES: dict[str, Rule] = {
    "import": Rule(
        ERROR, _WOULD_END, "Add the package to requirements.txt at the root of the code, or correct the import."
    ),
    "arguments": Rule(ERROR, _WOULD_END, "Correct the arguments after `--`; `python SCRIPT --help` lists the options."),
    "file": Rule(
        ERROR, _WOULD_END, "Add the data with `--dataset NAME` and read it from /input/NAME, or add it to the code."
    ),
    "data": Rule(ERROR, _WOULD_END, "Check the sample that fails; `shoal dataset check` checks all of them."),
    "environment": Rule(ERROR, _WOULD_END, "Correct requirements.txt; the job's output contains pip's messages."),
    "crash": Rule(ERROR, _WOULD_END, "Correct it, and try again; `shoal run SCRIPT` runs it here."),
    "killed": Rule(
        ERROR, _WOULD_END, "If it ran out of memory, use a smaller batch, fewer data workers, or a larger machine."
    ),
    "cut-short": Rule(
        WARNING,
        "A preflight ends loops over data early. This may be the cause, or the script may have a bug.",
        "Run it for an epoch with `shoal run SCRIPT`, or submit it with --no-preflight.",
    ),
    "shapes": Rule(ERROR, "The shapes of the tensors do not match.", "Make the shapes match before this line."),
    "labels": Rule(
        ERROR,
        "The job would fail there; on a GPU with an assertion that does not name the line.",
        "Give the last layer as many outputs as there are classes, and number labels from 0.",
    ),
    "token-ids": Rule(
        ERROR,
        "The job would fail there; on a GPU with an assertion that does not name the line.",
        "Take tokenizer and model from the same place, or call `model.resize_token_embeddings(len(tokenizer))`.",
    ),
    "not-finite": Rule(
        ERROR,
        "From then on, all weights become NaN: the job would run to its end without training anything.",
        "Use a smaller learning rate, avoid logarithms of zero and division by zero, and remove NaN from the data.",
    ),
    "data-not-finite": Rule(
        ERROR,
        "A single NaN in the input makes all weights NaN in one step.",
        "Clean the data, or fill missing values.",
    ),
    "never-steps": Rule(
        ERROR,
        "The job would succeed without having trained anything.",
        "Check whether the dataset is smaller than a batch with `drop_last=True`, or a loop's range is empty.",
    ),
    "no-zero-grad": Rule(
        ERROR,
        "The gradients of all steps add up, so every step repeats all earlier ones.",
        "Call `optimizer.zero_grad()` in every step.",
    ),
    "learning-rate": Rule(ERROR, "The weights never change.", "Give the optimizer a learning rate above 0."),
    "not-optimized": Rule(
        ERROR,
        "These weights get gradients, but no optimizer uses them.",
        "Create the optimizer from the parameters of the trained model, after the model is complete.",
    ),
    "unused-parameters": Rule(
        WARNING,
        "They use memory and are never trained; DistributedDataParallel raises an error because of them.",
        "Use them in forward, remove them, freeze them, or set find_unused_parameters=True.",
    ),
    "softmax-twice": Rule(
        WARNING,
        "cross_entropy applies a softmax itself; with a second softmax, the model learns slowly and stays uncertain.",
        "Pass the output of the last layer (the logits) to it.",
    ),
    "same-batch": Rule(
        WARNING,
        "Every step trains on the same samples.",
        "Create the iterator once, outside the loop, and make the dataset use its index.",
    ),
    "eval-mode": Rule(
        WARNING,
        "Dropout has no effect and batch norm learns no statistics. Models from a hub start in this mode.",
        "Call `model.train()` before training, and again after every evaluation.",
    ),
    "train-mode": Rule(
        WARNING,
        "Dropout distorts the results, and batch norm learns from the evaluation data.",
        "Call `model.eval()` before evaluating.",
    ),
    "memory": Rule(
        ERROR,
        "The job would be killed at its first step, or at its first large batch.",
        "Use a smaller batch with gradient accumulation, fewer workers per node, or a lower precision.",
    ),
    "disk": Rule(
        ERROR,
        "A checkpoint that does not fit is lost, with all training since the previous one.",
        "Keep fewer checkpoints (`--keep-last 2`), or free disk space where the job runs.",
    ),
    "checkpoint": Rule(
        ERROR, "The job could not resume from it.", "Save `state_dict()`s, and only objects that can be pickled."
    ),
    "kept-nowhere": Rule(
        WARNING,
        "In /output-checkpoint every checkpoint is kept; in the working directory only the newest weights; elsewhere none.",
        'Write it to os.environ["OUTPUT_DIR"].',
    ),
    "slow-start": Rule(
        WARNING,
        "Its steps could not be checked. It may wait for something, or spend a long time preparing data.",
        "Prepare the data once and push it as a dataset, or raise the server's `preflight_limit_s`.",
    ),
}

COMES_OF: dict[str, tuple[str, ...]] = {
    "not-finite": ("data-not-finite",),
    "unused-parameters": ("not-optimized",),
    "same-batch": ("never-steps",),
}
"""Mapping of rule → rules that cause it; a finding is skipped if one of its causes was found."""
