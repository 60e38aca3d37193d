"""Offers of a pool to those who rent, as cards: one per model of accelerator or kind of slots, with what is free now and its price."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.core.gpu_models import short_model
from shoal.core.jobs import CapacityView, MachineView
from shoal.core.money import MILLION
from shoal.core.schema import View
from shoal.core.settings import ServerSettings
from shoal.server.billing.ledger import price_of

MODEL = "gpu:"
"""Prefix of the form's value for a model; kinds of slots have none."""
_KINDS = {"cpu": "CPU", "cuda": "NVIDIA GPU", "rocm": "AMD GPU", "xpu": "Intel GPU"}


class Offer(View):
    """Slots of one model or kind."""

    choice: str
    """Value of the form's field: "gpu:H100", or a kind such as "cpu"."""
    name: str
    memory: int | None = None
    """Bytes of memory of each accelerator."""
    free: int = 0
    total: int = 0
    at_once: int = 0
    """Most slots that are free on one machine: a lease is on one."""
    machines: int = 0
    price: float = 0.0
    """Price of one slot for an hour; the highest, where they differ."""


@dataclass(slots=True)
class _Slot:
    choice: str
    name: str
    memory: int | None
    is_free: bool
    price: float


def offers(settings: ServerSettings, pool: CapacityView) -> list[Offer]:
    """Return what machines that are up offer: accelerators by model, then slots without one."""
    found: dict[str, Offer] = {}
    for machine in pool.machines:
        if machine.state != "up":
            continue
        free: dict[str, int] = {}
        for slot in _slots(settings, machine):
            offer = found.setdefault(slot.choice, Offer(choice=slot.choice, name=slot.name, memory=slot.memory))
            offer.machines += slot.choice not in free
            free[slot.choice] = free.get(slot.choice, 0) + slot.is_free
            offer.total += 1
            offer.free += slot.is_free
            offer.price = max(offer.price, slot.price)
        for choice, count in free.items():
            found[choice].at_once = max(found[choice].at_once, count)
    return sorted(found.values(), key=lambda offer: (not offer.choice.startswith(MODEL), offer.name))


def requirements(choice: str) -> dict[str, str]:
    """Return the fields of a request for the value of the form's field."""
    return {"gpu": choice.removeprefix(MODEL)} if choice.startswith(MODEL) else {"device": choice or "auto"}


def _slots(settings: ServerSettings, machine: MachineView) -> Iterator[_Slot]:
    for device in machine.devices:
        model = short_model(device.model)
        price = price_of(settings, machine.kind, device.model) / MILLION
        choice, name = (MODEL + model, model) if model else (machine.kind, _KINDS.get(machine.kind, machine.kind))
        yield _Slot(choice, name, device.memory, device.is_free, price)
    if not machine.devices:
        price = price_of(settings, machine.kind) / MILLION
        for number in range(machine.slots_total):
            yield _Slot(machine.kind, _KINDS.get(machine.kind, machine.kind), None, number < machine.slots_free, price)
