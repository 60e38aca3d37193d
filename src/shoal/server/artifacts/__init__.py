"""Artifacts: datasets, checkpoints, sources and media; the chunks they are made of, and the upkeep of the store."""
