"""Measures of predictions: error rates of texts, scores of classes, agreement, BLEU, ranking. Plain Python, no torch.

Only edit distances come from a library, where it is installed: rapidfuzz (extra `measure`). With texts of 60 words WER is 50 times
as fast with it, and CER 1,500 times; shorter texts gain less. The
other formulas are a few lines each, and their libraries are large or define them otherwise (docs/explanation/dependencies.md).
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

from shoal.core.errors import UsageError

Label = TypeVar("Label", bound=Hashable)
Text = str | Sequence[str]
"""Text that is split at white space, or a list of words."""


class LabelScores(NamedTuple):
    """Scores of one label."""

    precision: float
    recall: float
    f: float
    support: int
    """Samples whose true label is this one."""


class Scores(NamedTuple):
    """Scores of a classification. Labels that occur only in predictions get no scores of their own."""

    labels: dict[Any, LabelScores]
    accuracy: float
    macro_f: float
    """Mean of the labels' F scores."""
    weighted_f: float
    """Mean of the labels' F scores, weighted by their support."""
    kappa: float


def scores(true: Iterable[Label], predicted: Iterable[Label]) -> Scores:
    """Return precision, recall and F of each label in `true`, and overall scores.

    Args:
        true: True labels: an iterable, tensor or array.
        predicted: Predicted labels, as many.

    Raises UsageError if there are no values or the numbers differ, as do the other functions here.

    Example:
        >>> scores(["a", "b", "a"], ["a", "b", "b"]).accuracy
        0.6666666666666666
    """
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
    """Return the weighted harmonic mean of precision and recall. With beta above 1 recall counts more.

    Example:
        >>> f_score(0.5, 1.0)
        0.6666666666666666
    """
    return _ratio((1 + beta**2) * precision * recall, beta**2 * precision + recall)


def accuracy(true: Iterable[Label], predicted: Iterable[Label]) -> float:
    """Return the share of predictions that equal the true label.

    Example:
        >>> accuracy([1, 0, 1, 1], [1, 0, 0, 1])
        0.75
    """
    wanted, found = _pairs(true, predicted)
    return sum(bool(one == other) for one, other in zip(wanted, found, strict=True)) / len(wanted)


def confusion(true: Iterable[Label], predicted: Iterable[Label]) -> dict[tuple[Label, Label], int]:
    """Return (true, predicted) → count.

    Example:
        >>> confusion(["a", "b", "a"], ["a", "b", "b"])
        {('a', 'a'): 1, ('b', 'b'): 1, ('a', 'b'): 1}
    """
    return dict(Counter(zip(*_pairs(true, predicted), strict=True)))


def cohen_kappa(true: Iterable[Label], predicted: Iterable[Label]) -> float:
    """Return the agreement beyond chance: 1 is full agreement, 0 is chance level.

    It is also 1 if there is only one label and all agree.

    Example:
        >>> cohen_kappa([1, 0, 1, 0], [1, 0, 0, 0])
        0.5
    """
    wanted, found = _pairs(true, predicted)
    count = len(wanted)
    agreed = accuracy(wanted, found)
    found_count = Counter(found)
    chance = sum(n * found_count[label] for label, n in Counter(wanted).items()) / count**2
    return 1.0 if chance == 1 else (agreed - chance) / (1 - chance)


def edit_distance(reference: Sequence[Any], hypothesis: Sequence[Any]) -> int:
    """Return the minimum number of substitutions, insertions and deletions between two sequences (Levenshtein).

    Example:
        >>> edit_distance("kitten", "sitting")
        3
    """
    if (distance := _library_distance()) is not None:
        with suppress(TypeError):  # elements that cannot be hashed
            if not (isinstance(reference, str) and isinstance(hypothesis, str)):
                # rapidfuzz compares hashes, which may be equal for different values. Small numbers have their own.
                numbers: dict[Any, int] = {}
                reference, hypothesis = (
                    [numbers.setdefault(one, len(numbers)) for one in text] for text in (reference, hypothesis)
                )
            return int(distance(reference, hypothesis))
    above = list(range(len(hypothesis) + 1))
    for row, wanted in enumerate(reference, 1):
        line = [row]
        for column, found in enumerate(hypothesis, 1):
            line.append(min(above[column - 1] + (wanted != found), above[column] + 1, line[-1] + 1))
        above = line
    return above[-1]


def word_error_rate(references: Iterable[Text], hypotheses: Iterable[Text], *, case_sensitive: bool = False) -> float:
    """Return the word error rate (WER): edits divided by the words of all references. It can exceed 1.

    Args:
        references: True texts, or lists of words.
        hypotheses: Predicted texts, as many.
        case_sensitive: Whether upper and lower case differ.

    Example:
        >>> word_error_rate(["the cat sat"], ["the cat sits"])
        0.3333333333333333
    """
    wanted, found = _pairs(references, hypotheses)
    return _error_rate([_words(t, case_sensitive) for t in wanted], [_words(t, case_sensitive) for t in found])


def character_error_rate(
    references: Iterable[str], hypotheses: Iterable[str], *, case_sensitive: bool = False
) -> float:
    """Return the character error rate (CER): edits divided by the characters of all references.

    Arguments as for `word_error_rate`.

    Example:
        >>> character_error_rate(["abcd"], ["abce"])
        0.25
    """
    wanted, found = _pairs(references, hypotheses)
    if not case_sensitive:
        wanted, found = [t.lower() for t in wanted], [t.lower() for t in found]
    return _error_rate(wanted, found)


def bleu(
    references: Iterable[Text | Sequence[Text]], hypotheses: Iterable[Text], *, order: int = 4, smooth: bool = False
) -> float:
    """Return the corpus BLEU between 0 and 1 (Papineni et al., 2002). Words are compared as they are.

    Args:
        references: One text for each hypothesis, or a tuple of several.
        hypotheses: Predicted texts.
        order: Length of the longest n-grams.
        smooth: Add one to the counts of each order above the first (Lin and Och, 2004), for short texts.

    Example:
        >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"])
        1.0
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
    """Return the mean normalized discounted cumulative gain over queries, with the gain 2^relevance - 1.

    Args:
        relevances: For each query, the relevance of its results in the order they were ranked. A query without relevant
            results counts as 1.
        at: Number of results that count.

    Example:
        >>> ndcg([[3, 2, 1]])
        1.0
    """
    found = [_ratio(_gain(r, at), _gain(sorted(r, reverse=True), at), empty=1.0) for r in relevances]
    if not found:
        raise UsageError("there is nothing to measure: no queries were given")
    return sum(found) / len(found)


def _gain(relevance: Sequence[float], at: int) -> float:
    return sum((2**r - 1) / math.log2(place + 2) for place, r in enumerate(relevance[:at]))


@functools.cache
def _library_distance() -> Callable[[Sequence[Any], Sequence[Any]], int] | None:
    if find_spec("rapidfuzz") is None:
        return None
    distance: Callable[[Sequence[Any], Sequence[Any]], int] = import_module("rapidfuzz.distance").Levenshtein.distance
    return distance


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
    """Return values as a list; tensors and arrays become plain numbers, which can be compared and counted."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _ratio(part: float, whole: float, empty: float = 0.0) -> float:
    return part / whole if whole else empty
