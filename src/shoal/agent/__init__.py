"""The agent: runs one node of one attempt (environment, sandbox, workers, logs, outbox, heartbeats).

An engine starts the agent; the agent keeps running when the server restarts or is down. No module here imports pydantic or
http.client at start-up: they take longer to import than everything else that happens before the user's first line.
"""
