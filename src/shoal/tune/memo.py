"""Identity of trials: if two have the same key, the result of the first is reused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blake3 import blake3

from shoal.core.jobs import JobSpec
from shoal.core.sweeps import Params

_OF_THE_JOB = ("entry", "min_nodes", "max_nodes", "accels", "env", "secrets", "launcher")


def trial_key(job: JobSpec, params: Params, contents: Mapping[str, str]) -> str:
    """Return a hash of code, data, command, parameters, environment and number of workers.

    Names, ids and limits are not included, so that the same files pushed again give the same key.

    Args:
        job: Specification of the trial's job.
        params: Parameter values of the trial.
        contents: Path of code or data → id of its manifest.
    """
    fields: dict[str, Any] = {name: getattr(job, name) for name in _OF_THE_JOB}
    text = json.dumps([1, fields, sorted(params.items()), sorted(contents.items())], sort_keys=True)
    return blake3(text.encode()).hexdigest()
