"""Requests to a travel assistant and what is wanted by them, made by a grammar so that nothing has to be downloaded."""

import random

import torch

INTENTS = ["book_flight", "cancel_booking", "weather", "hotel", "directions", "exchange_money", "complain", "thank"]
_PATTERNS = {
    "book_flight": [
        "i want to fly to {city} {when}",
        "book a seat to {city} {when} please",
        "is there a plane to {city}",
    ],
    "cancel_booking": ["please cancel my trip to {city}", "i cannot go to {city} {when}", "drop my seat {when}"],
    "weather": ["will it rain in {city} {when}", "how warm is {city} {when}", "do i need a coat in {city}"],
    "hotel": [
        "find me a room in {city} {when}",
        "i need a bed {when} in {city}",
        "is there a quiet place to stay in {city}",
    ],
    "directions": [
        "how do i get to the station in {city}",
        "which way is the museum",
        "is it far to the harbour of {city}",
    ],
    "exchange_money": ["where can i change money in {city}", "what is a {coin} worth", "i need some {coin} {when}"],
    "complain": ["my seat to {city} was broken", "nobody came {when}", "the room in {city} was cold and loud"],
    "thank": ["thank you for {city}", "that was kind of you", "you helped me a lot {when}"],
}
_FILL = {
    "city": "lisbon oslo kyoto lima accra hanoi quito turin bergen dakar".split(),
    "when": "today tomorrow tonight monday soon later".split(),
    "coin": "euro yen peso krona cedi dong".split(),
}
_AROUND = ["hello", "hi there", "well", "listen", "please", "sorry", "um", "by the way", "if you can"]


def samples(count, seed):
    """(words, number of the intent)."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        intent = draw.choice(INTENTS)
        text = draw.choice(_PATTERNS[intent]).format(**{name: draw.choice(words) for name, words in _FILL.items()})
        around = [draw.choice(_AROUND) for _ in range(draw.randint(0, 2))]
        draw.shuffle(around)
        words = " ".join([*around, text]).split()
        # Somebody may mumble: a word that says nothing in place of one that did.
        words = [word if draw.random() > 0.2 else "mumble" for word in words]
        found.append((words, INTENTS.index(intent)))
    return found


class Vocabulary:
    """0 is padding, 1 a word that was never seen."""

    def __init__(self, texts):
        self._numbers = {word: n for n, word in enumerate(sorted({w for words in texts for w in words}), 2)}

    def __len__(self):
        return len(self._numbers) + 2

    def numbers(self, words):
        return torch.tensor([self._numbers.get(word, 1) for word in words])
