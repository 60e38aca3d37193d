"""Scores of a translation compared with the expected one."""

import math
from collections import Counter
from collections.abc import Sequence


def edits(found: Sequence[str], wanted: Sequence[str]) -> int:
    """Insertions, deletions and replacements from one to the other."""
    row = list(range(len(wanted) + 1))
    for i, a in enumerate(found, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(wanted, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return row[-1]


def figures(found: list[str], wanted: list[str]) -> list[float]:
    """Sums that add up over workers: edits and length in characters, in words, then matches and totals of 1- to 4-grams, lengths."""
    pairs = list(zip(found, wanted, strict=True))
    characters = [sum(edits(a, b) for a, b in pairs), sum(len(b) for _, b in pairs)]
    words = [sum(edits(a.split(), b.split()) for a, b in pairs), sum(len(b.split()) for _, b in pairs)]
    matches = [x for n in range(1, 5) for x in _matches(pairs, n)]
    return [float(x) for x in (*characters, *words, *matches, sum(len(a.split()) for a, _ in pairs))]


def rates(sums: list[float]) -> dict[str, float]:
    """Character and word error rate, and BLEU, of what `figures` gave in all."""
    found, wanted, grams = sums[-1], sums[3], list(zip(sums[4:-1:2], sums[5:-1:2], strict=True))
    bleu = 0.0
    if found and all(right for right, _ in grams):
        bleu = min(1.0, math.exp(1 - wanted / found)) * math.exp(sum(math.log(r / n) for r, n in grams) / len(grams))
    return {"cer": sums[0] / max(sums[1], 1), "wer": sums[2] / max(sums[3], 1), "bleu": bleu}


def _matches(pairs: list[tuple[str, str]], n: int) -> tuple[int, int]:
    right = total = 0
    for found, wanted in pairs:
        here = _grams(found.split(), n)
        right += (here & _grams(wanted.split(), n)).total()
        total += here.total()
    return right, total


def _grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
