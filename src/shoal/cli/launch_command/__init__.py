"""`shoal launch-command`."""
