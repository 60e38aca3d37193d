"""`shoal preflight`."""
