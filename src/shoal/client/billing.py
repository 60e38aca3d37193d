"""Usage, its cost, and cost estimates for jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from shoal.client._noun import WorkspaceNoun
from shoal.core.admin import LimitsChange, LimitsView
from shoal.core.billing import PricesView, QuoteRequest, QuoteView, UsageBy, UsageView, VerifyView
from shoal.core.model_prices import prices_text


class Billing(WorkspaceNoun):
    def usage(self, *, by: UsageBy = "job", since: datetime | None = None, until: datetime | None = None) -> UsageView:
        """Return the usage of the workspace."""
        return self._usage(self._path("billing", "usage"), by, since, until)

    def my_usage(
        self, *, by: UsageBy = "workspace", since: datetime | None = None, until: datetime | None = None
    ) -> UsageView:
        """Return the usage of all workspaces the user is a member of."""
        return self._usage("/billing/usage", by, since, until)

    def server_usage(
        self, *, by: UsageBy = "workspace", since: datetime | None = None, until: datetime | None = None
    ) -> UsageView:
        """Return the usage of all workspaces. For admins."""
        return self._usage("/admin/billing/usage", by, since, until)

    def verify(self, *, everything: bool = False, head: str | None = None) -> VerifyView:
        """Verify the whole ledger.

        Problems are listed for the workspace, or for all workspaces with `everything` (for admins).
        """
        path = "/admin/billing/verify" if everything else self._path("billing", "verify")
        return self._http.fetch(VerifyView, path, head=head)

    def prices(self) -> PricesView:
        return self._http.fetch(PricesView, "/billing/prices")

    def set_prices(
        self,
        prices: Mapping[str, float],
        currency: str | None = None,
        *,
        models: Mapping[str, float | None] | None = None,
    ) -> PricesView:
        """Set prices per hour for attempts that start from now on. For admins.

        Args:
            prices: Kind of slot (cpu, cuda, rocm, xpu) → price.
            currency: Currency of all prices; None: unchanged.
            models: Model of GPU → price, or None to remove it; models that are not given keep theirs.
        """
        given: dict[str, object] = {f"price_{k}": v for k, v in prices.items()} | {"currency": currency}
        if models:
            known = {**self.prices().models, **models}
            given["price_models"] = prices_text({name: price for name, price in known.items() if price is not None})
        change = LimitsChange.model_validate(given)
        self._http.call(LimitsView, "PATCH", "/admin/limits", change)
        return self.prices()

    def quote(self, ask: QuoteRequest) -> QuoteView:
        """Estimate the time and cost of a job from similar jobs."""
        return self._http.call(QuoteView, "POST", self._path("quotes"), ask, repeatable=True)

    def _usage(self, path: str, by: UsageBy, since: datetime | None, until: datetime | None) -> UsageView:
        return self._http.fetch(UsageView, path, by=by, since=_moment(since), until=_moment(until))


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
