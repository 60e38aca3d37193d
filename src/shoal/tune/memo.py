"""When two trials are the same: then the second need not run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Params

_OF_THE_JOB = ("entry", "min_nodes", "max_nodes", "accels", "env", "secrets", "launcher")


def trial_key(job: JobSpec, params: Params, contents: Mapping[str, str]) -> str:
    """Of code and data (where it is found → its manifest), command, parameters, environment and number of workers.

    Names, ids and limits do not count: the same files pushed once more are the same.
    """
    told: dict[str, Any] = {name: getattr(job, name) for name in _OF_THE_JOB}
    text = json.dumps([1, told, sorted(params.items()), sorted(contents.items())], sort_keys=True)
    return blake3(text.encode()).hexdigest()
