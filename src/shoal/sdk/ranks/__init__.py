"""The ranks of a run: their process group, their key-value store, and how they agree on a step."""
