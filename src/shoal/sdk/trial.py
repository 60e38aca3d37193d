"""For a script that runs as a trial of a sweep: the values chosen for it, and how it says that it is not worth running."""

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
"""So begins the reason for which a trial is stopped that fell behind others."""
_LENGTH = 400


def trial_params() -> dict[str, Any]:
    """The values the sweep has chosen for this process, by name; {} outside of a sweep."""
    text = os.environ.get(PARAMS)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{PARAMS}={text!r} in the environment is not a mapping in JSON")
    return found


def skip_trial(reason: str) -> NoReturn:
    """End this process: the trial should not be run, such as for a model that is too large. It does not count as a failure."""
    print(f"skipped: {' '.join(reason.split())[:_LENGTH]}", file=sys.stderr, flush=True)
    try:
        sys.exit(SKIPPED)
    except SystemExit as error:
        error.add_note(reason)
        raise


def is_trial() -> bool:
    return TRIAL in os.environ
