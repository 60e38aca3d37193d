"""How good predictions are: error rates of texts, scores of classes, agreement, BLEU, ranking. Plain Python, no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from shoal.core.errors import UsageError

Label = TypeVar("Label", bound=Hashable)
Text = str | Sequence[str]
"""A text, split at white space, or a list of words."""


class LabelScores(NamedTuple):
    precision: float
    recall: float
    f: float
    support: int
    """True samples of this label."""


class Scores(NamedTuple):
    """Of a classification. Labels that are only predicted have no true sample, and count as wrong predictions of the others."""

    labels: dict[Any, LabelScores]
    accuracy: float
    macro_f: float
    """Mean of the labels' F."""
    weighted_f: float
    """The same, weighed by how many samples truly have the label."""
    kappa: float


def scores(true: Iterable[Label], predicted: Iterable[Label]) -> Scores:
    """Precision, recall and F of each label that is in `true`, and of all together. Tensors and arrays are welcome."""
    wanted, found = _pairs(true, predicted)
    true_count, found_count = Counter(wanted), Counter(found)
    right = Counter(one for one, other in zip(wanted, found, strict=True) if one == other)
    labels = {}
    for label, support in true_count.items():
        precision = _ratio(right[label], found_count[label])
        recall = _ratio(right[label], support)
        labels[label] = LabelScores(precision, recall, f_score(precision, recall), support)
    return Scores(
        labels=labels,
        accuracy=accuracy(wanted, found),
        macro_f=sum(s.f for s in labels.values()) / len(labels),
        weighted_f=sum(s.f * s.support for s in labels.values()) / len(wanted),
        kappa=cohen_kappa(wanted, found),
    )


def f_score(precision: float, recall: float, beta: float = 1.0) -> float:
    """The harmonic mean; with beta above 1, recall counts more."""
    return _ratio((1 + beta**2) * precision * recall, beta**2 * precision + recall)


def accuracy(true: Iterable[Label], predicted: Iterable[Label]) -> float:
    wanted, found = _pairs(true, predicted)
    return sum(bool(one == other) for one, other in zip(wanted, found, strict=True)) / len(wanted)


def confusion(true: Iterable[Label], predicted: Iterable[Label]) -> dict[tuple[Label, Label], int]:
    """(true, predicted) → how often."""
    return dict(Counter(zip(*_pairs(true, predicted), strict=True)))


def cohen_kappa(true: Iterable[Label], predicted: Iterable[Label]) -> float:
    """Agreement beyond chance: 1 is full, 0 is what chance gives. 1 too where there is one label and all agree."""
    wanted, found = _pairs(true, predicted)
    count = len(wanted)
    agreed = accuracy(wanted, found)
    found_count = Counter(found)
    chance = sum(n * found_count[label] for label, n in Counter(wanted).items()) / count**2
    return 1.0 if chance == 1 else (agreed - chance) / (1 - chance)


def edit_distance(reference: Sequence[Any], hypothesis: Sequence[Any]) -> int:
    """The least number of substitutions, insertions and deletions that make one of the other (Levenshtein)."""
    above = list(range(len(hypothesis) + 1))
    for row, wanted in enumerate(reference, 1):
        line = [row]
        for column, found in enumerate(hypothesis, 1):
            line.append(min(above[column - 1] + (wanted != found), above[column] + 1, line[-1] + 1))
        above = line
    return above[-1]


def word_error_rate(references: Iterable[Text], hypotheses: Iterable[Text], *, case_sensitive: bool = False) -> float:
    """WER: edits over the words of all references. May be above 1."""
    wanted, found = _pairs(references, hypotheses)
    return _error_rate([_words(t, case_sensitive) for t in wanted], [_words(t, case_sensitive) for t in found])


def character_error_rate(
    references: Iterable[str], hypotheses: Iterable[str], *, case_sensitive: bool = False
) -> float:
    """CER: edits over the characters of all references."""
    wanted, found = _pairs(references, hypotheses)
    if not case_sensitive:
        wanted, found = [t.lower() for t in wanted], [t.lower() for t in found]
    return _error_rate(wanted, found)


def bleu(
    references: Iterable[Text | Sequence[Text]], hypotheses: Iterable[Text], *, order: int = 4, smooth: bool = False
) -> float:
    """Corpus BLEU between 0 and 1 (Papineni et al., 2002), of words as they are.

    references  one text for each hypothesis, or a tuple of several
    smooth      adds one to the counts of each order above the first (Lin and Och, 2004), for short texts
    """
    wanted, found = _pairs(references, hypotheses)
    matched, total = [0] * order, [0] * order
    wanted_words = found_words = 0
    for reference, hypothesis in zip(wanted, found, strict=True):
        words = _words(hypothesis, True)
        several = [_words(t, True) for t in (reference if isinstance(reference, tuple) else (reference,))]
        found_words += len(words)
        wanted_words += min((len(t) for t in several), key=lambda n: (abs(n - len(words)), n))
        for n in range(order):
            grams = _grams(words, n + 1)
            most: Counter[tuple[str, ...]] = Counter()
            for text in several:
                most |= _grams(text, n + 1)
            matched[n] += sum((grams & most).values())
            total[n] += sum(grams.values())
    if smooth:
        matched[1:], total[1:] = [m + 1 for m in matched[1:]], [t + 1 for t in total[1:]]
    if not found_words or not all(matched):
        return 0.0
    precision = sum(math.log(m / t) for m, t in zip(matched, total, strict=True)) / order
    return math.exp(min(0.0, 1 - wanted_words / found_words) + precision)


def ndcg(relevances: Iterable[Sequence[float]], at: int = 10) -> float:
    """Mean over queries; each a list of how relevant the results are, in the order they were given. 1 where none is relevant."""
    found = [_ratio(_gain(r, at), _gain(sorted(r, reverse=True), at), empty=1.0) for r in relevances]
    if not found:
        raise UsageError("there is nothing to measure: no queries were given")
    return sum(found) / len(found)


def _gain(relevance: Sequence[float], at: int) -> float:
    return sum((2**r - 1) / math.log2(place + 2) for place, r in enumerate(relevance[:at]))


def _error_rate(references: list[Any], hypotheses: list[Any]) -> float:
    edits = sum(edit_distance(r, h) for r, h in zip(references, hypotheses, strict=True))
    return edits / max(1, sum(map(len, references)))


def _words(text: Text, case_sensitive: bool) -> list[str]:
    words = text.split() if isinstance(text, str) else list(text)
    return words if case_sensitive else [word.lower() for word in words]


def _grams(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def _pairs(true: Iterable[Any], predicted: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    wanted, found = _listed(true), _listed(predicted)
    if len(wanted) != len(found):
        raise UsageError(f"there are {len(wanted)} true values and {len(found)} predicted ones")
    if not wanted:
        raise UsageError("there is nothing to measure: no values were given")
    return wanted, found


def _listed(values: Any) -> list[Any]:
    """Numbers of tensors and arrays as plain ones, which can be compared and counted."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _ratio(part: float, whole: float, empty: float = 0.0) -> float:
    return part / whole if whole else empty
