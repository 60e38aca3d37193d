"""What a training script holds: `run = shoal.init(...)` and the objects behind it.

Importing this costs nothing; torch is loaded by `run.prepare` at the earliest. Only torch and the standard library are
used (and shoal.core.errors), since a job may run in a virtual environment of its own.
"""
