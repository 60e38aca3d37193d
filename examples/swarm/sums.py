"""Sums in words, without end: "seven plus five is twelve." Every index is a sentence of its own, so nothing is downloaded."""

import random

import torch
from torch.utils.data import Dataset

_WORDS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen".split()
LETTERS = "_#. " + "abcdefghijklmnopqrstuvwxyz"
"""Letters of the model; the first two are padding and the mask."""
PAD, MASK = 0, 1
LENGTH = 32


def sentence(number: int) -> str:
    dice = random.Random(number)
    one, other = dice.randrange(10), dice.randrange(10)
    if dice.random() < 0.5:
        return f"{_WORDS[one]} plus {_WORDS[other]} is {_WORDS[one + other]}."
    return f"{_WORDS[one + other]} minus {_WORDS[other]} is {_WORDS[one]}."


class Sums(Dataset):
    """Tokens and what is to be said about them; where there is nothing to say, PAD."""

    def __init__(self, task: str, size: int = 20_000, first: int = 0):
        self.task, self.size, self.first = task, size, first

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        number = self.first + index
        letters = [LETTERS.index(letter) for letter in sentence(number)][: LENGTH + 1]
        tokens = torch.tensor(letters + [PAD] * (LENGTH + 1 - len(letters)))
        if self.task == "gpt":
            return tokens[:-1], tokens[1:]
        tokens = tokens[:-1]
        hidden = torch.rand(LENGTH, generator=torch.Generator().manual_seed(number)) < 0.15
        hidden &= tokens != PAD
        return tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, PAD)
