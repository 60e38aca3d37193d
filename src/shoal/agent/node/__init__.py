"""One node of one attempt: its main loop, its work directory, its heartbeats, and recovery after an agent that died."""
