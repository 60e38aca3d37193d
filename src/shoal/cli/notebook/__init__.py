"""`shoal notebook`."""
