"""Importance of a sweep's parameters for its results so far. Needed with every view of a sweep, so results are cached."""

from __future__ import annotations

import logging
import threading

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from shoal.core.sweeps import SweepSpec, TrialState
from shoal.server.models.sweeps import Sweep, Trial
from shoal.tune.importance import LEAST, shares

logger = logging.getLogger(__name__)
_MOST = 1_000
"""Maximum number of trials used, the newest; more would not change the result."""
_KEPT = 64
_lock = threading.Lock()
_answers: dict[str, tuple[int, dict[str, float]]] = {}
"""Sweep id → number of results at the time of computation, and the importance. Protected by `_lock`."""


def importance(session: Session, sweep: Sweep, spec: SweepSpec) -> dict[str, float]:
    """Return parameter → its share of the importance; empty while there are too few results."""
    useful = (
        (Trial.sweep_id == sweep.id)
        & Trial.state.in_([TrialState.DONE.value, TrialState.REUSED.value, TrialState.PRUNED.value])
        & Trial.result.is_not(None)
    )
    count = session.scalar(select(func.count()).where(useful)) or 0
    if count < LEAST:
        return {}
    with _lock:
        known = _answers.get(sweep.id)
        # Up to 5 % more results change little.
        if known is not None and known[0] <= count <= known[0] * 1.05:
            return known[1]
    rows = select(Trial.params, Trial.result).where(useful).order_by(Trial.number.desc()).limit(_MOST)
    try:
        found = shares(spec, [(params, result) for params, result in session.execute(rows)])
    except Exception:  # raised by a library: show the sweep without it
        logger.exception("the importance of the parameters of %s could not be computed", sweep.id)
        found = {}
    with _lock:
        while len(_answers) >= _KEPT:
            _answers.pop(next(iter(_answers)))
        _answers[sweep.id] = (count, found)
    return found
