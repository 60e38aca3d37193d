"""`shoal run`."""
