"""TopSpin's Measure: scores as dicts, rounded as in TopSpin."""

from __future__ import annotations

from collections import Counter
from typing import Any

from shoal.train import measure


class Measure:
    """Static methods of TopSpin's Measure."""

    @staticmethod
    def calc_WER(
        ref_list: list[str], hyp_list: list[str], parallel: bool = False, case_sensitive: bool = False
    ) -> float:
        """Return the word error rate over all texts. `parallel` is accepted and has no effect."""
        return measure.word_error_rate(ref_list, hyp_list, case_sensitive=case_sensitive)

    @staticmethod
    def calc_precision_recall_fvalue(true_labels: list[Any], preded_labels: list[Any]) -> dict[Any, Any]:
        """Return recall, precision and f of each label, and weighted_f and accuracy of all.

        As in TopSpin, weighted_f is the mean of the f values after these were rounded to four digits.
        """
        found = measure.scores(true_labels, preded_labels)
        labels = {
            label: {"recall": round(one.recall, 4), "precision": round(one.precision, 4), "f": round(one.f, 4)}
            for label, one in found.labels.items()
        }
        weighted_f = sum(labels[label]["f"] * one.support for label, one in found.labels.items()) / len(true_labels)
        return {
            **labels,
            "weighted_f": round(weighted_f, 4),
            "accuracy": round(found.accuracy, 4),
            "data_description": Measure.stat_data(true_labels),
        }

    @staticmethod
    def calc_classification(true_labels: list[Any], preded_labels: list[Any]) -> dict[Any, Any]:
        kappa = Measure.calc_kappa_coefficient(true_labels, preded_labels)
        return {**Measure.calc_precision_recall_fvalue(true_labels, preded_labels), "kappa_coefficient": kappa}

    @staticmethod
    def calc_kappa_coefficient(true_labels: list[Any], preded_labels: list[Any]) -> float:
        """Return Cohen's kappa."""
        return measure.cohen_kappa(true_labels, preded_labels)

    @staticmethod
    def stat_data(true_labels: list[Any]) -> str:
        counts = Counter(true_labels)
        parts = [
            f"label[{label}]: (count={n}, percent={100 * n / len(true_labels):.4} %)"
            for label, n in sorted(counts.items())
        ]
        return " ".join([f"#label: {len(counts)}", f"#sample: {len(true_labels)}", *parts])
