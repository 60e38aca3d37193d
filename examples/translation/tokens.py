"""Words as numbers, one vocabulary per language, built from the sentences and kept in a file beside the weights."""

import json
from pathlib import Path

PAD, UNKNOWN, START, END = range(4)
_SPECIAL = ["[PAD]", "[UNK]", "[SOS]", "[EOS]"]


class Tokenizer:
    def __init__(self, words: list[str]):
        self.words = words
        self._numbers = {word: number for number, word in enumerate(words)}

    @classmethod
    def of(cls, sentences: list[str]) -> "Tokenizer":
        """Return a tokenizer for these sentences. Every worker builds the same one, so none waits for a file of another."""
        return cls([*_SPECIAL, *sorted({word for sentence in sentences for word in sentence.split()})])

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.words, ensure_ascii=False), encoding="utf-8")

    def __len__(self) -> int:
        return len(self.words)

    def numbers(self, sentence: str, length: int) -> list[int]:
        """Return the tokens between START and END, padded or cut to this length."""
        found = [self._numbers.get(word, UNKNOWN) for word in sentence.split()][: length - 2]
        return [START, *found, END] + [PAD] * (length - 2 - len(found))

    def sentence(self, numbers: list[int]) -> str:
        """Return the words up to END."""
        kept = numbers[: numbers.index(END)] if END in numbers else numbers
        return " ".join(self.words[number] for number in kept if number not in (PAD, START))
