"""Decoders of what others send are given damaged input: a short form of `./scripts/soak --decoders`, with the same decoders."""

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INPUTS = 400
HOSTILE = (
    b"[" * 100_000,
    b'{"t":' * 50_000,
    b'{"t": 1e400, "m": 1}',
    b"[1]",
    b"null",
    b"\xff\xfe",
    b'{"a": "\\ud800"}',
    b"-1",
    b'""',
)


@pytest.fixture(scope="module")
def decoders():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from fuzzing import decoders

        yield decoders
        decoders.forget()
    finally:
        sys.path.remove(str(ROOT / "scripts"))
        for name in [name for name in sys.modules if name.partition(".")[0] == "fuzzing"]:
            del sys.modules[name]


def mutated(rng, data):
    """Return the data with a few bits, numbers or pieces changed, or cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                changed[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"9999"))
            case 3:
                changed[at : at + rng.randint(1, 9)] = b""
            case _:
                changed[at:at] = rng.choice((*HOSTILE[2:], data[: rng.randint(0, 50)]))
    return bytes(changed)


@pytest.mark.parametrize("name", ["archive", "header", "checkpoint", "record", "frames"])
def test_damaged_input_is_refused_and_never_an_internal_error(decoders, name):
    decoder, rng = decoders.DECODERS[name], random.Random(name)
    seeds = decoder.seeds()
    for seed in seeds:
        decoder.run(seed)
    for number in range(INPUTS):
        data = mutated(rng, rng.choice(seeds))
        try:
            decoder.run(data)
        except Exception as error:
            raise AssertionError(f"input {number}: {data[:200]!r}") from error


@pytest.mark.parametrize("name", ["header", "checkpoint", "record"])
def test_json_that_is_no_object_or_nested_without_end_is_refused(decoders, name):
    for text in HOSTILE:
        for number in range(5 if name == "checkpoint" else 1):
            begin = {"header": len(text).to_bytes(8, "little"), "checkpoint": bytes([number]), "record": b""}[name]
            decoders.DECODERS[name].run(begin + text)


def test_every_decoder_is_tried_above(decoders):
    assert set(decoders.DECODERS) == {"archive", "header", "checkpoint", "record", "frames"}
