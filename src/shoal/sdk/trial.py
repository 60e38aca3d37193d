"""Functions for a script that runs as a trial of a sweep: read the chosen values, or skip the trial."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from shoal.core.errors import UsageError

PARAMS, TRIAL = "SHOAL_PARAMS", "SHOAL_TRIAL"
SKIPPED = 77
"""Exit code of a script that skips its trial."""
PRUNED = "pruned: "
"""Prefix of the stop reason of a trial that is stopped early because others are better."""
_LENGTH = 400


def trial_params() -> dict[str, Any]:
    """Return the parameter values that the sweep chose for this trial, by name; {} outside a sweep.

    Example::

        lr = shoal.trial_params().get("lr", 1e-3)
    """
    text = os.environ.get(PARAMS)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{PARAMS}={text!r} in the environment is not a JSON object")
    return found


def skip_trial(reason: str) -> NoReturn:
    """End this process because its trial should not run, for example when the model would be too large.

    The trial does not count as a failure.

    Args:
        reason: Shown with the trial.

    Example::

        if params["layers"] * params["width"] > 100_000:
            shoal.skip_trial("the model would not fit into memory")
    """
    print(f"skipped: {' '.join(reason.split())[:_LENGTH]}", file=sys.stderr, flush=True)
    try:
        sys.exit(SKIPPED)
    except SystemExit as error:
        error.add_note(reason)
        raise


def is_trial() -> bool:
    return TRIAL in os.environ
