"""What was used, what it costs, and what a job would cost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from shoal.client._noun import WorkspaceNoun
from shoal.core.admin import LimitsChange, LimitsView
from shoal.core.billing import PricesView, QuoteAsk, QuoteView, UsageBy, UsageView, VerifyView


class Billing(WorkspaceNoun):
    def usage(self, *, by: UsageBy = "job", since: datetime | None = None, until: datetime | None = None) -> UsageView:
        """Of the workspace."""
        return self._usage(self._path("billing", "usage"), by, since, until)

    def my_usage(
        self, *, by: UsageBy = "workspace", since: datetime | None = None, until: datetime | None = None
    ) -> UsageView:
        """Of all workspaces one is a member of."""
        return self._usage("/billing/usage", by, since, until)

    def server_usage(
        self, *, by: UsageBy = "workspace", since: datetime | None = None, until: datetime | None = None
    ) -> UsageView:
        """Of everyone; for admins."""
        return self._usage("/admin/billing/usage", by, since, until)

    def verify(self, *, everything: bool = False, head: str | None = None) -> VerifyView:
        """Read the whole ledger again. Damage is named in one's own workspace, or (for admins) anywhere."""
        path = "/admin/billing/verify" if everything else self._path("billing", "verify")
        return self._http.fetch(VerifyView, path, head=head)

    def prices(self) -> PricesView:
        return self._http.fetch(PricesView, "/billing/prices")

    def set_prices(self, prices: Mapping[str, float], currency: str | None = None) -> PricesView:
        """Kind of slot → price of one for an hour, for attempts that start from now on; for admins."""
        change = LimitsChange.model_validate({f"price_{k}": v for k, v in prices.items()} | {"currency": currency})
        self._http.call(LimitsView, "PATCH", "/admin/limits", change)
        return self.prices()

    def quote(self, ask: QuoteAsk) -> QuoteView:
        """How long such a job would take and what it would cost, from jobs like it."""
        return self._http.call(QuoteView, "POST", self._path("quotes"), ask, repeatable=True)

    def _usage(self, path: str, by: UsageBy, since: datetime | None, until: datetime | None) -> UsageView:
        return self._http.fetch(UsageView, path, by=by, since=_moment(since), until=_moment(until))


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
