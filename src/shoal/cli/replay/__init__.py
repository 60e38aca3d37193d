"""`shoal replay`."""
