"""Runs one node of one attempt: environment, sandbox, workers, logs, spool, beats. Started by an engine, outlives the server.

Nothing here imports pydantic or http.client at start: they would cost more than all the rest until the user's first line.
"""
