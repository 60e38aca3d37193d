"""Money and slot time. Amounts are whole millionths and times whole milliseconds, so sums are exact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from shoal.core.durations import parse_duration, short_duration
from shoal.core.errors import UsageError

MILLION = 1_000_000
HOUR_MS = 3_600_000
KINDS = ("cpu", "cuda", "rocm", "xpu")
"""Kinds of slots. Each kind has its own price."""

_AMOUNT = re.compile(r"\d{1,9}(\.\d{1,6})?")
_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit for a job: money or slot time."""

    micros: int | None = None
    slot_ms: int | None = None

    def text(self, currency: str) -> str:
        if self.micros is not None:
            return money(self.micros, currency)
        return f"{(self.slot_ms or 0) / HOUR_MS:.4g} slot-hours"


def parse_budget(text: str) -> Budget:
    """Return the budget for a text: `5.00` is money; `2h` and `90m` are slot time (two slots use up 2h in one hour)."""
    cleaned = text.strip().lower()
    if _AMOUNT.fullmatch(cleaned):
        if micros := int(Decimal(cleaned) * MILLION):
            return Budget(micros=micros)
        raise UsageError("The budget must be larger than 0.", hint="Like this: --budget 5.00, or --budget 2h")
    try:
        if cleaned[-1:].isalpha() and (slot_ms := round(parse_duration(cleaned, "--budget") * 1000)):
            return Budget(slot_ms=slot_ms)
    except UsageError:
        pass
    raise UsageError(
        f"--budget {text!r} is neither an amount of money nor a slot time.",
        hint="Like this: --budget 5.00, or --budget 2h",
    )


def plain_budget(text: str) -> str:
    """Return a budget in its stored form: `5.00`, or slot time in its largest unit."""
    found = parse_budget(text)
    if found.micros is None:
        return short_duration(max(1, round((found.slot_ms or 0) / 1000)))
    whole, rest = divmod(found.micros, MILLION)
    return f"{whole}.{f'{rest:06d}'.rstrip('0'):0<2}"


def as_typed(text: str, currency: str) -> str:
    """Return a stored budget in the unit in which it was given: `5.00 EUR`, or `90m of slot time`."""
    found = parse_budget(text)
    return found.text(currency) if found.micros is not None else f"{plain_budget(text)} of slot time"


def check_currency(text: str) -> str:
    """Return the currency code, or raise ValueError if it is not three capital letters."""
    if not _CURRENCY.fullmatch(text):
        raise ValueError(f"{text!r} is not a currency: three capital letters, such as EUR")
    return text


def cost_of(slot_ms: int, price: int) -> int:
    """Return the cost in millionths of slot-milliseconds at a price in millionths per slot-hour; a half is rounded up."""
    return (slot_ms * price + HOUR_MS // 2) // HOUR_MS


def amount(micros: int) -> str:
    """Return an amount as text: `5.00`; amounts below a tenth have four digits after the point."""
    value = micros / MILLION
    digits = 2 if micros == 0 or abs(value) >= 0.1 else 4
    return f"{value:.{digits}f}"


def money(micros: int, currency: str) -> str:
    return f"{amount(micros)} {currency}"
