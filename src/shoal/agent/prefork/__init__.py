"""A preloaded process that forks agents and workers, so that imports are paid for only once."""
