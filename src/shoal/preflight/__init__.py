"""Preflight: run a few real steps of an unmodified script in a job's environment, observed from inside its process.

The package is loaded by path, under its own name, by an interpreter that may not have shoal: it must not import other parts
of shoal.
"""
