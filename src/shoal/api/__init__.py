"""Shoal from Python: `shoal.connect()` returns a `Workspace`, from which you run scripts and read results.

    import shoal

    space = shoal.connect()
    job = space.run("train.py --lr 3e-4", accels=2)
    job.wait()
    job.metrics().frame()

Notebooks also get `%load_ext shoal`, which adds the cell magic `%%shoal`.
"""

from shoal.core.lazy import lazy_names

_HOMES = {
    "Checkpoint": ".checkpoints",
    "Dataset": ".datasets",
    "Job": ".jobs",
    "Metrics": ".metrics",
    "Runs": ".runs",
    "ShoalError": "shoal.core.errors",
    "Sweep": ".sweeps",
    "Table": ".frames",
    "Trial": ".sweeps",
    "Workspace": ".workspace",
    "connect": ".workspace",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
