"""Looking for good parameters: what to try next, which trials to end early, which need not be run again.

Pure, with no database and no jobs; but for `sweep`, which is what `shoal.sweep` does in Python.
"""
