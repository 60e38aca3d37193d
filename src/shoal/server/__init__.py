"""The control plane: HTTP API, database, scheduler. Never imports torch; needs the `server` extra."""
