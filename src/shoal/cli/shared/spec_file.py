"""Reader of a job's spec in a JSON file: the output of `training inspect JOB --json`, or only the spec in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.shared.output import out
from shoal.core.errors import EntryNotFound, UsageError

if TYPE_CHECKING:
    from shoal.core.jobs import JobSpec


def read_spec(path: Path) -> JobSpec:
    """Return the spec in a file. Its `source_id` is empty if the file has none: the code is then in the file's folder."""
    from shoal.core.jobs import JobSpec

    hint = f"{out.prog} training inspect JOB --json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EntryNotFound(f"Cannot read {path}: {error.strerror}.", hint=hint) from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.", hint=hint) from None
    spec = known.get("spec", known) if isinstance(known, dict) else known
    if not isinstance(spec, dict) or "entry" not in spec:
        raise UsageError(f"{path} is not a job's spec.", hint=hint)
    return JobSpec.model_validate({"source_id": "", "name": "job", **spec})
