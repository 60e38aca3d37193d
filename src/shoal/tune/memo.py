"""When two trials are the same: then the second need not run."""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3

from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Params

_OF_THE_JOB = ("entry", "source_id", "checkpoint", "min_nodes", "max_nodes", "accels", "env", "secrets", "launcher")


def trial_key(job: JobSpec, params: Params, datasets: dict[str, str]) -> str:
    """Of code, data (name → manifest), command, parameters, environment and number of workers. Names and limits do not count."""
    told: dict[str, Any] = {name: getattr(job, name) for name in _OF_THE_JOB}
    text = json.dumps([1, told, sorted(params.items()), sorted(datasets.items())], sort_keys=True)
    return blake3(text.encode()).hexdigest()
