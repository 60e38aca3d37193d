"""Money and slot time. Amounts are whole millionths and times whole milliseconds, so that sums are exact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from shoal.core.durations import parse_duration, short_duration
from shoal.core.errors import UsageError

MILLION = 1_000_000
HOUR_MS = 3_600_000
KINDS = ("cpu", "cuda", "rocm", "xpu")
"""Kinds of slots, each with a price of its own."""

_AMOUNT = re.compile(r"\d{1,9}(\.\d{1,6})?")
_CURRENCY = re.compile(r"[A-Z]{3}")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job may use at most: money, or time of slots."""

    micros: int | None = None
    slot_ms: int | None = None

    def text(self, currency: str) -> str:
        if self.micros is not None:
            return money(self.micros, currency)
        return f"{(self.slot_ms or 0) / HOUR_MS:.4g} slot-hours"


def parse_budget(text: str) -> Budget:
    """`5.00` is money; `2h` and `90m` are time of slots, so that two slots use up 2h in one hour."""
    cleaned = text.strip().lower()
    if _AMOUNT.fullmatch(cleaned):
        if micros := int(Decimal(cleaned) * MILLION):
            return Budget(micros=micros)
        raise UsageError("A budget of nothing lets nothing run.", hint="Like this: --budget 5.00, or --budget 2h")
    try:
        if cleaned[-1:].isalpha() and (slot_ms := round(parse_duration(cleaned, "--budget") * 1000)):
            return Budget(slot_ms=slot_ms)
    except UsageError:
        pass
    raise UsageError(
        f"--budget {text!r} is neither an amount of money nor time of slots.",
        hint="Like this: --budget 5.00, or --budget 2h",
    )


def plain_budget(text: str) -> str:
    """A budget as it is kept: `5.00`, or slot time in its largest unit."""
    found = parse_budget(text)
    if found.micros is None:
        return short_duration(max(1, round((found.slot_ms or 0) / 1000)))
    whole, rest = divmod(found.micros, MILLION)
    return f"{whole}.{f'{rest:06d}'.rstrip('0'):0<2}"


def check_currency(text: str) -> str:
    if not _CURRENCY.fullmatch(text):
        raise ValueError(f"{text!r} is not a currency: three capital letters, such as EUR")
    return text


def cost_of(slot_ms: int, price: int) -> int:
    """Millionths, for so many slot-milliseconds at so many millionths per slot-hour; a half is rounded up."""
    return (slot_ms * price + HOUR_MS // 2) // HOUR_MS


def amount(micros: int) -> str:
    """`5.00`; what is less than a tenth gets four digits after the point."""
    value = micros / MILLION
    digits = 2 if micros == 0 or abs(value) >= 0.1 else 4
    return f"{value:.{digits}f}"


def money(micros: int, currency: str) -> str:
    return f"{amount(micros)} {currency}"
