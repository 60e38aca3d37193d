"""Prices of models of accelerators, as one line of text: `H100=3.50, A100 80GB=2`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.gpu_models import check_model, is_model
from shoal.core.money import MILLION


def parse_prices(text: str) -> dict[str, float]:
    """Return model → price of one slot for one hour; raise ValueError for a text that is none."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        model, is_given, price = (word.strip() for word in part.rpartition("="))
        try:
            value = float(price)
        except ValueError:
            value = -1.0
        if not is_given or not 0 <= value <= MILLION:
            raise ValueError(f"{part!r} is not a price of a model, such as H100=3.50")
        found[check_model(model)] = value
    return found


def prices_text(prices: Mapping[str, float]) -> str:
    """Return prices as one line, which `parse_prices` reads."""
    return ", ".join(f"{model}={price:.10g}" for model, price in sorted(prices.items()))


def check_prices(text: str) -> str:
    """Return the text in its usual form; raise ValueError if it is not a list of prices."""
    return prices_text(parse_prices(text))


def price_of_model(prices: Mapping[str, float], model: str) -> float | None:
    """Return the price of a driver's name of a model: that of the longest name it matches. None: it has no price of its own."""
    named = [name for name in prices if model and is_model(model, name)]
    return prices[max(named, key=lambda name: (len(name), name))] if named else None
