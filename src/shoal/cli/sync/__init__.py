"""`shoal sync`."""
