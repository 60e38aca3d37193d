"""Sweep operations for users: create, show, stop. `server.sweeper` starts the trials."""
