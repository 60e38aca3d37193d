"""`shoal server`."""
