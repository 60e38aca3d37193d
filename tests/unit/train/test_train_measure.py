"""Measures against known values and against other ways to compute them."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.train import measure

labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)
words = st.lists(st.sampled_from("abc"), max_size=7)
quick = settings(max_examples=80, deadline=None)


def test_the_scores_of_a_small_classification():
    found = measure.scores([0, 1, 1, 2], [0, 0, 1, 2])
    assert found.labels[0] == (0.5, 1.0, pytest.approx(2 / 3), 1)
    assert found.labels[1] == (1.0, 0.5, pytest.approx(2 / 3), 2)
    assert found.labels[2] == (1.0, 1.0, 1.0, 1)
    assert found.accuracy == 0.75
    assert found.weighted_f == pytest.approx((2 / 3 + 2 * 2 / 3 + 1) / 4)
    assert found.macro_f == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


@quick
@given(labels)
def test_scores_agree_with_a_count_of_right_and_wrong(pairs):
    true, predicted = zip(*pairs, strict=True)
    found = measure.scores(true, predicted)
    for label in set(true):
        tp = sum(t == label == p for t, p in pairs)
        fp = sum(p == label != t for t, p in pairs)
        fn = sum(t == label != p for t, p in pairs)
        # F as 2TP / (2TP + FP + FN): the same number by another formula.
        assert found.labels[label].f == pytest.approx(2 * tp / (2 * tp + fp + fn))
        assert found.labels[label].support == tp + fn
    # Weighed by support, recall is accuracy.
    assert sum(s.recall * s.support for s in found.labels.values()) / len(pairs) == pytest.approx(found.accuracy)
    table = measure.confusion(true, predicted)
    assert sum(table.values()) == len(pairs) and table == Counter(pairs)


@quick
@given(labels)
def test_kappa_is_one_for_agreement_and_agrees_with_the_confusion_matrix(pairs):
    true, predicted = zip(*pairs, strict=True)
    assert measure.cohen_kappa(true, true) == 1
    torch = pytest.importorskip("torch")
    matrix = torch.zeros(4, 4, dtype=torch.float64)
    for t, p in pairs:
        matrix[t, p] += 1 / len(pairs)
    chance = float(matrix.sum(0) @ matrix.sum(1))
    if chance < 1 - 1e-9:
        assert measure.cohen_kappa(true, predicted) == pytest.approx((float(matrix.trace()) - chance) / (1 - chance))


def test_kappa_of_the_textbook():
    """20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: 0.4."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert measure.cohen_kappa(*zip(*pairs, strict=True)) == pytest.approx(0.4)


@quick
@given(words, words)
def test_the_edit_distance_is_that_of_its_definition(one, other):
    @cache
    def distance(i, j):
        if not i or not j:
            return i + j
        same = distance(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        return min(same, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    wanted = distance(len(one), len(other))
    for library in {find_spec("rapidfuzz") is not None, False}:
        with pytest.MonkeyPatch.context() as patch:
            if not library:
                patch.setattr(measure, "_library_distance", lambda: None)
            for kind in (list, "".join, lambda text: [[c] for c in text]):
                assert (
                    measure.edit_distance(kind(one), kind(other))
                    == wanted
                    == measure.edit_distance(kind(other), kind(one))
                )


def test_different_values_with_the_same_hash_are_different():
    assert hash(-1) == hash(-2) and measure.edit_distance([-1, 5], [-2, 5]) == 1


def test_error_rates():
    assert measure.word_error_rate(["who is there", "who is there"], ["is there", ""]) == pytest.approx(4 / 6)
    assert measure.word_error_rate(["Who is there"], ["who IS there"]) == 0
    assert measure.word_error_rate(["Who"], ["who"], case_sensitive=True) == 1
    assert measure.word_error_rate(["a"], ["b c d"]) == 3
    assert measure.word_error_rate([["a", "b"]], [["a", "c"]]) == 0.5
    assert measure.character_error_rate(["kitten"], ["sitting"]) == pytest.approx(3 / 6)
    assert measure.character_error_rate(["Ab"], ["aB"], case_sensitive=True) == 1


def test_bleu_of_worked_examples():
    reference = "the cat is on the mat"
    assert measure.bleu([reference], [reference]) == pytest.approx(1)
    assert measure.bleu([reference], ["the the the the the the the"], order=1) == pytest.approx(2 / 7)
    # Papineni's brevity: 3 of 6 words, all right.
    assert measure.bleu([reference], ["the cat is"], order=1) == pytest.approx(math.exp(1 - 6 / 3))
    several = ("the cat is on the mat", "there is a cat on the mat")
    assert measure.bleu([several], ["the cat on the mat"], order=1) == pytest.approx(math.exp(1 - 6 / 5))
    assert measure.bleu([reference], ["a dog"]) == 0
    # Bigrams: 1 of 2, smoothed 2 of 3; words 3 of 3; as long as the reference.
    found = measure.bleu(["a b c"], ["b c a"], order=2, smooth=True)
    assert found == pytest.approx(math.sqrt(1.0 * 2 / 3))


def test_bleu_is_of_the_corpus_and_not_a_mean():
    one, other = ("a b c d e", "a b c d e"), ("f g h i j", "f g x y z")
    both = measure.bleu(*map(list, zip(one, other, strict=True)))
    assert both == pytest.approx(math.exp(sum(math.log(m / t) for m, t in ((7, 10), (5, 8), (3, 6), (2, 4))) / 4))


def test_ndcg_of_a_worked_example():
    relevance = [3, 2, 3, 0, 1, 2]

    def gain(values):
        return sum((2**v - 1) / math.log2(i + 2) for i, v in enumerate(values))

    assert measure.ndcg([relevance]) == pytest.approx(gain(relevance) / gain(sorted(relevance, reverse=True)))
    assert measure.ndcg([[3, 2, 1], [0, 0]]) == 1
    assert measure.ndcg([[0, 1]], at=1) == 0


def test_tensors_are_welcome():
    torch = pytest.importorskip("torch")
    assert measure.accuracy(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
    assert list(measure.scores(torch.tensor([1]), [1]).labels) == [1]


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(UsageError, match="2 true values and 1"):
        measure.accuracy([1, 2], [1])
    for empty in (measure.scores, measure.word_error_rate, measure.bleu):
        with pytest.raises(UsageError, match="nothing to measure"):
            empty([], [])
