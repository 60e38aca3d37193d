"""Guarantee that holds for a resumed training, from what verify-resume has compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BIT_EXACT = "bit_exact"
"""The same bits, every time."""
BIT_EXACT_HERE = "bit_exact_here"
"""The same bits in this test, but nothing rules out that they differ another time."""
SAME_DATA = "same_data"
"""The same samples in the same order and the same random numbers, but other bits in the weights."""
NONE = "none"

_SWITCH = "shoal.init(deterministic=True)"
_ORDER_OF_SUMS = 3
"""Number of workers from which on DDP may sum gradients in another order in the first step after a resume."""


def guarantee(compared: Mapping[str, Any], *, order: str | None, order_checked: bool) -> dict[str, str]:
    """Return {level, text}.

    Args:
        compared: Result of sdk.compare.
        order: The first difference in the order of samples, or None.
        order_checked: False if there was no sample log to check.
    """
    strict = bool(compared.get("deterministic"))
    if compared["equal"] and order is None:
        if not strict:
            text = f"bit-exact in this test. Kernels that are not deterministic are allowed; {_SWITCH} rules them out"
            return {"level": BIT_EXACT_HERE, "text": f"{text}, or names the operator that has no other"}
        if compared["parallel"] == "ddp" and (compared["world_size"] or 1) >= _ORDER_OF_SUMS:
            text = (
                f"bit-exact in this test. DDP with {compared['world_size']} workers may sum gradients in another order"
            )
            return {"level": BIT_EXACT_HERE, "text": f"{text} in the first step after a resume"}
        text = "bit-exact on the same hardware, torch version and number of workers"
        return {"level": BIT_EXACT, "text": text}
    if order is None and order_checked and all(_is_arithmetic(found) for found in compared["differences"]):
        hint = "" if strict else f"; {_SWITCH} may make it so"
        return {"level": SAME_DATA, "text": f"the same samples in the same order, but not the same bits{hint}"}
    return {"level": NONE, "text": "none: the first difference says what is not restored"}


def _is_arithmetic(difference: Mapping[str, Any]) -> bool:
    """Check whether a difference may come from arithmetic: the values of a tensor of a model or an optimizer."""
    return bool(difference["what"] == "tensor" and difference["file"] != "training.pt")
