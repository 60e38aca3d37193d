"""`shoal init`."""
