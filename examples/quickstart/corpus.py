"""A small text to learn from, written by a grammar so that nothing has to be downloaded."""

import random

_WHO = [
    "the shoal",
    "a small fish",
    "the old turtle",
    "a silver herring",
    "the tide",
    "a quiet diver",
    "the lighthouse",
]
_DOES = ["follows", "waits for", "circles", "remembers", "leads", "finds", "listens to"]
_WHAT = ["the moon", "a warm current", "the northern light", "its neighbours", "the long way home", "a ship's bell"]
_HOW = ["without a sound", "before dawn", "one more time", "as one", "in cold water", "far from the shore"]


def text(sentences: int = 4000, seed: int = 7) -> str:
    pick = random.Random(seed).choice
    return " ".join(f"{pick(_WHO)} {pick(_DOES)} {pick(_WHAT)} {pick(_HOW)}." for _ in range(sentences))
