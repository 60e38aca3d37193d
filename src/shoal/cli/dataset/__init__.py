"""`shoal dataset`."""
