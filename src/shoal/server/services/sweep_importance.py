"""Which parameters of a sweep matter, by what its trials have shown so far. Asked for with every look at a sweep, so the last answers are kept."""

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
"""Trials to judge by, the newest; more would tell no more."""
_KEPT = 64
_lock = threading.Lock()
_answers: dict[str, tuple[int, dict[str, float]]] = {}
"""Sweep → how many results there were, and what they said."""


def importance(session: Session, sweep: Sweep, spec: SweepSpec) -> dict[str, float]:
    """Parameter → share; empty while too little is known."""
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
        # Of many results a few more change little.
        if known is not None and known[0] <= count <= known[0] * 1.05:
            return known[1]
    rows = select(Trial.params, Trial.result).where(useful).order_by(Trial.number.desc()).limit(_MOST)
    try:
        found = shares(spec, [(params, result) for params, result in session.execute(rows)])
    except Exception:  # of a library's: a sweep is shown without it
        logger.exception("no importance of the parameters of %s", sweep.id)
        found = {}
    with _lock:
        while len(_answers) >= _KEPT:
            _answers.pop(next(iter(_answers)))
        _answers[sweep.id] = (count, found)
    return found
