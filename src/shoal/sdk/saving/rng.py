"""The random generators of this process: python, numpy if imported, torch on CPU and accelerators, as tensors and plain types."""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")  # untyped: type checking must not depend on whether it is installed

_MT19937_BYTES = 625 * 4
"""624 words and the position."""
_last_of_numpy: tuple[bytes, Any] | None = None


def rng_state() -> dict[str, Any]:
    """All of them, loadable with weights_only=True."""
    return packed(raw_rng_state())


def raw_rng_state() -> tuple[Any, Any, Any, Any]:
    """All of them as they are, in a tenth of the time: to be packed if ever needed."""
    numpy = sys.modules.get("numpy")
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return random.getstate(), torch.get_rng_state(), cuda, None if numpy is None else _of_numpy(numpy)


def packed(raw: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
    (version, words, gauss), default, cuda, of_numpy = raw
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "torch": default,
        "cuda": cuda,
    }
    if of_numpy is not None:
        kind, keys, position, has_gauss, gauss = of_numpy
        words = torch.tensor(keys.tolist(), dtype=torch.int64)
        state["numpy"] = [str(kind), words, int(position), int(has_gauss), float(gauss)]
    return state


def _of_numpy(numpy: Any) -> Any:
    """numpy.random.get_state(), which takes longer than all the others; as it was the last time if nothing was drawn since.

    A draw changes the generator's memory, unless it is the second number of a normal pair, which was kept: then it is asked.
    """
    global _last_of_numpy
    generator = numpy.random.get_bit_generator()
    if type(generator).__name__ != "MT19937":
        return numpy.random.get_state()
    memory = ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
    if _last_of_numpy is None or _last_of_numpy[0] != memory or _last_of_numpy[1][3]:
        _last_of_numpy = (memory, numpy.random.get_state())
    return _last_of_numpy[1]


def set_rng_state(state: Mapping[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        numpy = import_module("numpy")
        kind, words, position, has_gauss, gauss = state["numpy"]
        keys = numpy.array(words.tolist(), dtype=numpy.uint32)
        numpy.random.set_state((kind, keys, position, has_gauss, gauss))


def derived_seed(*key: object) -> int:
    """63 bits that depend on the key alone, on every machine."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_everything(*key: object) -> None:
    """Python, numpy if imported, torch."""
    seed_cpu(derived_seed(*key))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(derived_seed(*key))


def seed_cpu(seed: int) -> None:
    """What code on the CPU draws from; about 12 µs."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def keep_cpu() -> Callable[[], None]:
    """A function that puts the generators of the CPU back to where they are now."""
    python, default = random.getstate(), torch.default_generator.get_state()
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None

    def put_back() -> None:
        random.setstate(python)
        torch.default_generator.set_state(default)
        if numpy is not None:
            numpy.random.set_state(state)

    return put_back
