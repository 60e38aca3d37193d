"""Changes of settings in the audit log: those that admins make, and those found when the server starts.

Settings may contain credentials. Values are recorded only for limits that admins change; of the others only the names.
For the comparison at the next start a keyed digest of each value is stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session

from shoal.core.audit import AuditAction
from shoal.server.audit.record import record_action
from shoal.server.context import Context
from shoal.server.models.server import ServerFact

_FACT = "recorded_settings"
_KEY = "key"
"""Entry with the check value of the secret key: with another key all digests differ."""


def record_limits(ctx: Context, changed: Mapping[str, Any]) -> None:
    """Record that an admin changed limits, which are in effect already."""
    if not changed:
        return

    def work(session: Session) -> None:
        detail = ", ".join(f"{name} = {value}" for name, value in sorted(changed.items()))
        record_action(session, AuditAction.SETTINGS_CHANGE, ", ".join(sorted(changed)), detail=detail)
        _remember(session, _digests(ctx))

    ctx.db.write(work)


def record_at_start(ctx: Context) -> None:
    """Record the names of settings that differ from those of the last start: changed in settings.toml or by an option."""
    now = _digests(ctx)

    def work(session: Session) -> None:
        row = session.get(ServerFact, _FACT)
        before = json.loads(row.value) if row is not None else {}
        if before == now:
            return
        if before.get(_KEY) == now[_KEY]:
            names = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
            if names:
                detail = "found at the server's start"
                record_action(session, AuditAction.SETTINGS_CHANGE, ", ".join(names), detail=detail)
        _remember(session, now)

    ctx.db.write(work)


def _digests(ctx: Context) -> dict[str, str]:
    values = {
        name: ctx.vault.derive(f"setting {name} = {value!r}")[:22] for name, value in asdict(ctx.settings).items()
    }
    return values | {_KEY: ctx.vault.check_value}


def _remember(session: Session, digests: dict[str, str]) -> None:
    session.merge(ServerFact(name=_FACT, value=json.dumps(digests, sort_keys=True)))
