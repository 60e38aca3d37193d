"""Notebooks as sources of jobs."""
