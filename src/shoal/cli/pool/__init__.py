"""`shoal pool`."""
