"""Everything a preflight can find: how bad it is, why it matters, what to do."""

from __future__ import annotations

from typing import NamedTuple

ERROR, WARNING, HINT = "error", "warning", "hint"


class Rule(NamedTuple):
    severity: str
    why: str
    fix: str


_WOULD_END = "The job would end there, after it had waited for its turn."

RULES: dict[str, Rule] = {
    "import": Rule(
        ERROR, _WOULD_END, "Name the package in requirements.txt at the root of the code, or correct the import."
    ),
    "arguments": Rule(ERROR, _WOULD_END, "Correct what follows `--`; `python SCRIPT --help` lists what it takes."),
    "file": Rule(
        ERROR, _WOULD_END, "Give the data with `--dataset NAME` and read it from /input/NAME, or add it to the code."
    ),
    "data": Rule(ERROR, _WOULD_END, "Look at the sample it fails on; `shoal dataset check` goes through all of them."),
    "environment": Rule(ERROR, _WOULD_END, "Correct requirements.txt; the job's output says what pip said."),
    "crash": Rule(ERROR, _WOULD_END, "Correct it, and try again; `shoal run SCRIPT` runs it here."),
    "killed": Rule(
        ERROR, _WOULD_END, "If it was for want of memory: a smaller batch, fewer data workers, or a larger machine."
    ),
    "cut-short": Rule(
        WARNING,
        "A preflight ends loops over data early. This may come of that, and may be a fault of the script.",
        "Run it for an epoch with `shoal run SCRIPT`, or submit it with --no-preflight.",
    ),
    "shapes": Rule(
        ERROR, "What is compared or multiplied does not fit together.", "Make the shapes equal before this line."
    ),
    "labels": Rule(
        ERROR,
        "On a CPU the job would end there; on a GPU it would with an assertion that names no line.",
        "Let the last layer have as many outputs as there are classes, and count labels from 0.",
    ),
    "token-ids": Rule(
        ERROR,
        "On a CPU the job would end there; on a GPU it would with an assertion that names no line.",
        "Take tokenizer and model from the same place, or call `model.resize_token_embeddings(len(tokenizer))`.",
    ),
    "not-finite": Rule(
        ERROR,
        "From there on every weight is NaN, and the job would run to its end and train nothing.",
        "A smaller learning rate, no logarithm or division of zero, and data without NaN.",
    ),
    "data-not-finite": Rule(
        ERROR,
        "One NaN among the inputs makes every weight NaN in one step.",
        "Clean the data, or fill what is missing.",
    ),
    "never-steps": Rule(
        ERROR,
        "It would end well and have trained nothing.",
        "Is the dataset smaller than a batch while `drop_last=True`? Is a loop's range empty?",
    ),
    "no-zero-grad": Rule(
        ERROR,
        "Gradients of all steps add up, so that each step goes where all earlier ones went.",
        "Call `optimizer.zero_grad()` in every step.",
    ),
    "learning-rate": Rule(
        ERROR, "No weight changes, whatever the data.", "Give the optimizer a learning rate above 0."
    ),
    "not-optimized": Rule(
        ERROR,
        "These weights get gradients, and no optimizer ever uses them.",
        "Make the optimizer from the parameters of the model that is trained, after its last layer is in place.",
    ),
    "unused-parameters": Rule(
        WARNING,
        "They take memory and never learn; DistributedDataParallel ends with an error over them.",
        "Use them in forward, remove them, freeze them, or set find_unused_parameters=True.",
    ),
    "softmax-twice": Rule(
        WARNING,
        "cross_entropy takes a softmax itself; of a softmax, it learns slowly and never gets sure.",
        "Give it the scores as they leave the last layer.",
    ),
    "same-batch": Rule(
        WARNING,
        "Step after step sees the very same samples.",
        "Make the iterator once, outside the loop, and let the dataset go by its index.",
    ),
    "eval-mode": Rule(
        WARNING,
        "Dropout does nothing and batch norm learns no statistics. Models from a hub begin in this mode.",
        "Call `model.train()` before training, and again after every evaluation.",
    ),
    "train-mode": Rule(
        WARNING,
        "Dropout falsifies what is measured, and batch norm learns from the evaluation's data.",
        "Call `model.eval()` before evaluating.",
    ),
    "memory": Rule(
        ERROR,
        "The job would be killed at its first step, or at its first large batch.",
        "A smaller batch with gradient accumulation, fewer workers per node, or a lower precision.",
    ),
    "disk": Rule(
        ERROR,
        "A checkpoint that does not fit is lost, and so is the time since the one before.",
        "Keep fewer (`--keep-last 2`), or make room where the job runs.",
    ),
    "checkpoint": Rule(
        ERROR, "Nothing could be resumed from it.", "Save `state_dict()`s, and nothing that cannot be pickled."
    ),
    "kept-nowhere": Rule(
        WARNING,
        "Below /output-checkpoint every checkpoint is kept; in the working directory only the newest state of weights, elsewhere nothing.",
        'Write it to os.environ["OUTPUT_DIR"].',
    ),
    "slow-start": Rule(
        WARNING,
        "Nothing can be said about its steps. It may wait for something, or prepare its data for long.",
        "Prepare the data once and push it as a dataset, or raise the server's `preflight_limit_s`.",
    ),
}

COMES_OF: dict[str, tuple[str, ...]] = {
    "not-finite": ("data-not-finite",),
    "unused-parameters": ("not-optimized",),
    "same-batch": ("never-steps",),
}
"""What follows from something that was found already is not told again."""
