"""`shoal machine`."""
