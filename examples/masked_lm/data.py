"""Sentences made by a grammar, cut into words, some of which are hidden for the model to guess."""

import random

PAD, MASK = 0, 1
_SUBJECTS = {"the heron": "wades", "the otter": "dives", "the crab": "digs", "the gull": "glides", "the seal": "rests"}
_PLACES = {
    "wades": "shallow water",
    "dives": "deep water",
    "digs": "wet sand",
    "glides": "open sky",
    "rests": "warm rock",
}
_TIMES = "in the morning|at noon|in the evening|all night long|while it rains|when the tide turns".split("|")
_LINKS = "and then|but first|because|so that|although".split("|")


def sentences(count, seed):
    """Return sentences of one to four parts, with 7 to about 40 words. The subject determines the verb, and the verb the place."""
    draw = random.Random(seed)

    def part():
        who, does = draw.choice(list(_SUBJECTS.items()))
        return f"{who} {does} near the {_PLACES[does]} {draw.choice(_TIMES)}"

    found = []
    for _ in range(count):
        text = part()
        for _ in range(draw.choice([0, 0, 1, 1, 2, 3])):
            text += f" {draw.choice(_LINKS)} {part()}"
        found.append(text.split())
    return found


def vocabulary(texts):
    """Word → number; 0 is padding and 1 the mask."""
    return {word: number for number, word in enumerate(sorted({w for text in texts for w in text}), 2)}


def hide(numbers, words, draw=random, share=0.15):
    """(what the model sees, what it is to guess), as BERT does it: of the chosen words 80 % are masked, 10 % another word, 10 % stay.

    Nothing is to be guessed where the target is -100.
    """
    seen, targets = list(numbers), [-100] * len(numbers)
    chosen = [at for at in range(len(numbers)) if draw.random() < share] or [draw.randrange(len(numbers))]
    for at in chosen:
        targets[at] = numbers[at]
        way = draw.random()
        if way < 0.8:
            seen[at] = MASK
        elif way < 0.9:
            seen[at] = draw.randrange(2, words)
    return seen, targets
