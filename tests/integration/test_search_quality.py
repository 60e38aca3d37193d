"""Searching real trainings: as good as the whole grid for a third of its steps. More of them, and larger grids: bench/search.py.

The trainings are shorter here than in ./scripts/soak.
"""

import os
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.torch
def test_asha_finds_the_best_of_a_grid_with_a_third_of_its_steps(monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.syspath_prepend(BENCH)
    import search
    import search_problems
    import torch

    if "SHOAL_SOAK" not in os.environ:
        monkeypatch.setattr(search_problems, "STEPS", 4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        axes = {"lr": [0.01, 0.03, 0.1], "embedding": [2, 6, 16], "dropout": [0.0, 0.2, 0.5]}
        trainings = search.Trainings(replace(search.PROBLEMS["characters"], axes=axes))
        best = search.best_of_grid(trainings)
        shares = [search.share_needed(trainings, best, "values", seed) for seed in range(9)]
    finally:
        torch.set_num_threads(threads)
    assert statistics.median(shares) <= search.GOAL, shares
