"""`shoal swarm`."""
