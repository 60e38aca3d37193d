"""The audit log of the server, for its admins."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from urllib.parse import urlencode

from shoal.client._noun import Noun
from shoal.core.audit import AuditEntry, AuditVerified

Listed = list[AuditEntry]
_PAGE = 1000


class Audit(Noun):
    def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        workspace: str | None = None,
        since: datetime | None = None,
        limit: int = 100,
    ) -> Listed:
        """List entries, newest first.

        `action`: an action (`job.stop`), or the kind of its object (`job`). `workspace`: name or id.
        """
        found: list[AuditEntry] = []
        while len(found) < limit:
            size = min(_PAGE, limit - len(found))
            before = found[-1].seq if found else None
            page = self._http.fetch(
                list[AuditEntry],
                "/admin/audit",
                actor=actor,
                action=action,
                workspace=workspace,
                since=None if since is None else since.isoformat(),
                before=before,
                limit=size,
            )
            found += page
            if len(page) < size:
                break
        return found

    def verify(self, *, head: str | None = None) -> AuditVerified:
        """Verify the whole log. `head`: an earlier head as SEQ:HASH, which the log must still contain."""
        return self._http.fetch(AuditVerified, "/admin/audit/verify", head=head)

    def export(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        workspace: str | None = None,
        since: datetime | None = None,
    ) -> Iterator[bytes]:
        """Yield all entries as JSON lines, oldest first, in pieces of any size."""
        given = {"actor": actor, "action": action, "workspace": workspace}
        params = {name: value for name, value in given.items() if value}
        if since is not None:
            params["since"] = since.isoformat()
        with self._http.download(f"/admin/audit/export?{urlencode(params)}") as (_, pieces):
            yield from pieces
