"""`shoal verify-resume`."""
