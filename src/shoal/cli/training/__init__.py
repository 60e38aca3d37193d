"""`shoal training`."""
