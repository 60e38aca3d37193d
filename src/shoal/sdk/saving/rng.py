"""State of the random generators of this process (python, numpy if imported, torch and its devices) as plain types and tensors."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import random
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")  # untyped: type checking must not depend on whether it is installed

logger = logging.getLogger(__name__)

DEVICES = ("cuda", "xpu", "mps")
"""Kinds of devices with generators of their own. ROCm devices have type cuda."""
_MT19937_BYTES = 625 * 4
"""Bytes of a Mersenne Twister's state: 624 words and the position."""
_last_of_numpy: tuple[bytes, Any] | None = None


def rng_state() -> dict[str, Any]:
    """Return the state of all generators, in a form that loads with weights_only=True."""
    return packed(raw_rng_state())


def raw_rng_state() -> tuple[Any, Any, Any, Any]:
    """Return the state of all generators unconverted, in a tenth of the time; `packed` converts it when needed."""
    numpy = sys.modules.get("numpy")
    devices = {kind: _device_states(kind) for kind in DEVICES if _is_in_use(kind)}
    return random.getstate(), torch.get_rng_state(), devices, None if numpy is None else _of_numpy(numpy)


def packed(raw: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
    (version, words, gauss), default, devices, of_numpy = raw
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "torch": default,
        **{kind: [] for kind in DEVICES},
        **{kind: states for kind, (states, _) in devices.items()},
        "current": {kind: current for kind, (_, current) in devices.items()},
    }
    if of_numpy is not None:
        kind, keys, position, has_gauss, gauss = of_numpy
        words = torch.tensor(keys.tolist(), dtype=torch.int64)
        state["numpy"] = [str(kind), words, int(position), int(has_gauss), float(gauss)]
    return state


def _of_numpy(numpy: Any) -> Any:
    """Return numpy.random.get_state(), from a cache if nothing was drawn since: it is slower than all the others.

    A draw changes the generator's memory, except the second number of a normal pair, which numpy keeps: while there is one,
    the cache is not used.
    """
    global _last_of_numpy
    generator = numpy.random.get_bit_generator()
    if type(generator).__name__ != "MT19937":
        return numpy.random.get_state()
    memory = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    if _last_of_numpy is None or _last_of_numpy[0] != memory or _last_of_numpy[1][3]:
        _last_of_numpy = (memory, numpy.random.get_state())
    return _last_of_numpy[1]


def set_rng_state(state: Mapping[str, Any], warn: Callable[[str], None] = logger.warning) -> None:
    """Restore the generators. `warn` is called with each reason why one of a device could not be restored."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    for kind in DEVICES:
        if state.get(kind):
            _set_device_states(kind, state[kind], state.get("current", {}).get(kind), warn)
    if "numpy" in state:
        numpy = import_module("numpy")
        kind, words, position, has_gauss, gauss = state["numpy"]
        keys = numpy.array(words.tolist(), dtype=numpy.uint32)
        numpy.random.set_state((kind, keys, position, has_gauss, gauss))


def _is_in_use(kind: str) -> bool:
    """Check whether this process uses devices of this kind. Asking for their generators would otherwise start them."""
    if kind == "mps":
        return bool(torch.backends.mps.is_available())
    module = getattr(torch, kind, None)
    return module is not None and bool(module.is_initialized())


def _device_states(kind: str) -> tuple[list[Any], int]:
    """Return the generators of all devices of a kind that this process sees, and the number of the one it works on."""
    module = getattr(torch, kind)
    if kind == "mps":
        return [module.get_rng_state()], 0
    return module.get_rng_state_all(), int(module.current_device())


def _set_device_states(kind: str, states: list[Any], current: int | None, warn: Callable[[str], None]) -> None:
    module = getattr(torch, kind, None)
    is_there = torch.backends.mps.is_available() if kind == "mps" else module is not None and module.is_available()
    if module is None or not is_there:
        warn(f"this worker has no {kind} device, so the random generators of {len(states)} are not restored")
        return
    count = 1 if kind == "mps" else int(module.device_count())
    pairs = list(enumerate(states))
    if len(states) != count:
        # Which device a worker sees as which number depends on the launcher: all that is known is the one it works on.
        pairs = [] if current is None else [(int(module.current_device()), states[current])]
        restored = "only that of its own device is restored" if pairs else "they are not restored"
        warn(f"the saved random generators are of {len(states)} {kind} devices, this worker has {count}: {restored}")
    for number, state in pairs:
        try:
            module.set_rng_state(state, *(() if kind == "mps" else (number,)))
        except (RuntimeError, TypeError, ValueError) as error:
            warn(f"the random generator of {kind}:{number} could not be restored: {error}")


def derived_seed(*key: object) -> int:
    """Return a 63-bit seed that depends on the key only and is the same on every machine."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_everything(*key: object) -> None:
    """Seed python, numpy (if imported) and torch with a seed derived from the key."""
    seed_cpu(derived_seed(*key))
    for kind in DEVICES:
        if _is_in_use(kind):
            module = getattr(torch, kind)
            (module.manual_seed if kind == "mps" else module.manual_seed_all)(derived_seed(*key))


def seed_cpu(seed: int) -> None:
    """Seed the CPU generators (python, numpy, torch); takes about 12 µs."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def keep_cpu() -> Callable[[], None]:
    """Return a function that restores the current state of the CPU generators."""
    python, default = random.getstate(), torch.default_generator.get_state()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None

    def put_back() -> None:
        random.setstate(python)
        torch.default_generator.set_state(default)
        if numpy is not None:
            numpy.random.set_state(state)

    return put_back
