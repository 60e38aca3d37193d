"""Hyperparameter search: which values to try next, which trials to end early, which results to reuse.

Pure, without database or jobs, except for `shoal.sweep` (sweep.py, local.py, remote.py, child.py).
"""
