"""Looking for good parameters: what to try next, which trials to end early, which need not be run again. Pure; no database, no jobs."""
