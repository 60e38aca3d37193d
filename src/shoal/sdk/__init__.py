"""The SDK that training scripts import: `run = shoal.init(...)` and the objects behind it.

Importing this package is cheap; torch is imported by `run.prepare` at the earliest. Only torch, the standard library and a
few small modules of shoal.core are used, because a job may run in its own virtual environment.
"""
