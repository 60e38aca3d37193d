"""`shoal billing`: what was used, what it costs, and that nobody has changed the record."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from shoal.cli._format import clean
from shoal.cli._output import Column, out
from shoal.cli._parse import parse_since
from shoal.cli._session import connect
from shoal.core.errors import UsageError
from shoal.core.money import KINDS, MILLION, check_currency, money

if TYPE_CHECKING:
    from shoal.core.billing import PricesView, UsageView, VerifyView

app = App(name="billing")
By = Literal["job", "workspace", "person", "day"]
_TITLES = {"job": "JOB", "workspace": "WORKSPACE", "person": "PERSON", "day": "DAY (UTC)"}


@app.command
def usage(
    *,
    by: By | None = None,
    since: str | None = None,
    until: str | None = None,
    everywhere: bool = False,
    everyone: bool = False,
    as_csv: Annotated[bool, Parameter(name="--csv")] = False,
) -> None:
    """Show what was used, in slot-hours, and what it cost where slots have a price.

    A slot counts from the first word of its node to the last, by the server's
    clock. What runs now is in it.

    For example:

      shoal billing usage
      shoal billing usage --since 7d --by day
      shoal billing usage --since 2026-01-01 --until 2026-02-01 --by person --csv
      shoal billing usage --everywhere
      shoal billing usage --everyone --by workspace --json

    Parameters
    ----------
    by
        What to sum up by: job (default), workspace, person or day.
    since
        Only what was used after this: 7d ago, or 2026-01-31.
    until
        Only what was used before this.
    everywhere
        In all workspaces you are a member of, by workspace unless --by says otherwise.
    everyone
        On the whole server, by workspace unless --by says otherwise; for admins.
    as_csv
        Print rows with commas between.
    """
    if everywhere and everyone:
        raise UsageError("--everyone holds --everywhere already.")
    start = parse_since(since) if since else None
    end = parse_since(until, option="--until") if until else None
    if start and end and start >= end:
        raise UsageError("--since is not before --until.")
    is_wide = everywhere or everyone or by == "workspace"
    with connect() as client:
        ask = client.billing.server_usage if everyone else client.billing.my_usage if is_wide else client.billing.usage
        found = ask(by=by or ("workspace" if is_wide else "job"), since=start, until=end)
    if as_csv and not out.json:
        out.write(_csv(found))
    else:
        out.show(found, lambda: _print_usage(found))


@app.command
def verify(*, everything: bool = False, head: str | None = None) -> int:
    """Read the whole ledger again and check its chain of hashes; exits with 1 if anything was changed.

    It also prints the head: number and hash of the last entry. Keep it
    elsewhere, and give it to a later check, to prove that nothing before it
    was written anew.

    For example:

      shoal billing verify
      shoal billing verify --everything
      shoal billing verify --head 812:5d41402abc4b2a76b9719d911017c592ae1a…

    Parameters
    ----------
    everything
        Name damaged entries of all workspaces; for admins.
    head
        One printed earlier, that must still stand.
    """
    with connect() as client:
        found = client.billing.verify(everything=everything, head=head)
    out.show(found, lambda: _print_verified(found, everything))
    return 0 if found.whole else 1


@app.command
def price(kind: str | None = None, amount: float | None = None, /, *, currency: str | None = None) -> None:
    """Show what a slot costs for an hour, or set it (for admins).

    A new price holds for attempts that start from now on; what runs keeps the
    one it began with. A price of 0 means that nothing is charged.

    For example:

      shoal billing price
      shoal billing price cuda 1.20 --currency EUR
      shoal billing price cpu 0

    Parameters
    ----------
    kind
        Kind of slot: cpu, cuda, rocm or xpu.
    amount
        Price of one for an hour.
    currency
        What prices are in: EUR, USD …
    """
    if kind is None and currency is None:
        with connect() as client:
            prices = client.billing.prices()
    else:
        _check_price(kind, amount, currency)
        with connect() as client:
            prices = client.billing.set_prices({kind: amount} if kind and amount is not None else {}, currency)
    out.show(prices, lambda: _print_prices(prices))


def _check_price(kind: str | None, amount: float | None, currency: str | None) -> None:
    if kind is not None and kind not in KINDS:
        raise UsageError(
            f"There are no slots of kind '{clean(kind)}'; there are {', '.join(KINDS)}.",
            hint=f"{out.prog} billing price cuda 1.20",
        )
    if kind is not None and (amount is None or not 0 <= amount <= MILLION):
        raise UsageError(
            f"Say what a slot of kind '{kind}' costs for an hour.", hint=f"{out.prog} billing price {kind} 1.20"
        )
    if currency is not None:
        try:
            check_currency(currency)
        except ValueError as error:
            raise UsageError(f"{error}.", hint=f"{out.prog} billing price --currency EUR") from None


def cost_text(cost: float | None, currency: str | None) -> str | None:
    return None if cost is None else money(round(cost * MILLION), currency or "")


def _print_usage(found: UsageView) -> None:
    columns = [Column(_TITLES[found.by], lambda r: r.key)]
    if found.by != "job":
        columns.append(Column("JOBS", lambda r: r.jobs, is_right=True, rank=1))
    columns.append(Column("SLOT-HOURS", lambda r: f"{r.slot_seconds / 3600:.4f}", is_right=True))
    if found.costs:
        columns.append(Column("COST", lambda r: cost_text(r.cost, r.currency), is_right=True))
    out.table(found.rows, columns, empty="Nothing was used.")
    costs = ", ".join(money(round(cost * MILLION), currency) for currency, cost in found.costs.items())
    out.dim(f"In all {found.slot_seconds / 3600:.4f} slot-hours{', ' + costs if costs else ''}.")


def _csv(found: UsageView) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([found.by, "id", "jobs", "slot_seconds", "cost", "currency"])
    rows.writerows([r.key, r.id, r.jobs, r.slot_seconds, r.cost, r.currency] for r in found.rows)
    return text.getvalue()


def _print_verified(found: VerifyView, everything: bool) -> None:
    if found.whole:
        out.say(f"The ledger is whole: {found.entries} entr{'y' if found.entries == 1 else 'ies'} read and verified.")
        out.line(f"{found.seq}:{found.head}")
        return
    out.say("The ledger is not as it was written.")
    for problem in found.problems:
        which = "the ledger" if problem.seq is None else f"entry {problem.seq}"
        of_job = f" (job '{clean(problem.job)}')" if problem.job else ""
        out.line(f"{which}{of_job}: {clean(problem.what)}")
    if not found.problems:
        out.say("No entry of this workspace is hurt.")
    if not everything:
        out.say(f"An admin can see all of it: {out.prog} billing verify --everything")


def _print_prices(prices: PricesView) -> None:
    columns = [
        Column("KIND", lambda p: p[0]),
        Column(
            "PER SLOT-HOUR", lambda p: money(round(p[1] * MILLION), prices.currency) if p[1] else "-", is_right=True
        ),
    ]
    out.table(list(prices.prices.items()), columns)
