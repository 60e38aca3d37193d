"""Engines that an admin has added, and jobs that wait in an engine's own queue."""
