"""`shoal sweep`."""
