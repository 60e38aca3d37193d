"""Backups on a schedule, by settings: `backup_to`, `backup_every_h`, `backup_keep`, `backup_keys`."""

from __future__ import annotations

import logging
import time

from shoal.core.background_loops import Loop
from shoal.core.backups import BackupView
from shoal.core.errors import NotAllowedNow
from shoal.core.schema import utcnow
from shoal.server.actor import SERVER
from shoal.server.backup import revocations
from shoal.server.backup.create import create
from shoal.server.backup.place import Place
from shoal.server.context import Context

logger = logging.getLogger(__name__)
_EVERY_S = 60.0
_RETRY_S = 300.0
"""Seconds between two tries of a backup that fails: each copies the whole database."""
_BOUND_S = 86_400.0
"""Seconds a backup may take before its loop counts as late. A first one copies the whole store."""


class BackupLoop:
    """Loop that makes backups when they are due and keeps the place's list of revocations up to date."""

    def __init__(self, ctx: Context):
        self._ctx = ctx
        self._failed: tuple[float, Exception] | None = None
        self._loop = Loop("backup", self._step, is_closing=lambda: ctx.live.closing, every_s=_EVERY_S, bound_s=_BOUND_S)

    def start(self) -> None:
        """Start the loop, if backups are configured."""
        if self._ctx.settings.backup_to:
            self._ctx.loops.start(self._loop)

    def stop(self) -> None:
        """Stop the loop without waiting for a backup that is being made: it is worthless until its last step."""
        self._loop.stop(timeout_s=1.0)

    def _step(self) -> None:
        if self._failed is not None and time.monotonic() - self._failed[0] < _RETRY_S:
            raise self._failed[1]
        try:
            self.pass_once()
            self._failed = None
        except Exception as error:
            self._failed = (time.monotonic(), error)
            raise

    def pass_once(self) -> BackupView | None:
        """Export revocations, and make a backup if one is due; return it."""
        ctx = self._ctx
        with Place(ctx.settings.backup_to) as place:
            revocations.export(ctx.layout.database, place)
            if not self._is_due(place):
                return None
            try:
                made = create(ctx.layout, ctx.settings, place, keys=ctx.settings.backup_keys, actor=SERVER)
            except NotAllowedNow:  # a person makes one at this moment, or a garbage collection runs
                return None
            removed = place.prune(made.instance, ctx.settings.backup_keep)
        logger.info("made backup %s (%d new bytes), removed %d old ones", made.id, made.added_bytes, len(removed))
        return made

    def _is_due(self, place: Place) -> bool:
        mine = [b for b in place.backups() if b.instance == self._ctx.instance]
        if not mine:
            return True
        # A backup from the future was made while the clock was wrong; waiting for it to age could take years.
        age_s = (utcnow() - mine[0].made_at).total_seconds()
        return not 0 <= age_s < self._ctx.settings.backup_every_h * 3600
