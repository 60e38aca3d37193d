from __future__ import annotations

import json
import os
import random
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.store.chunking import WHOLE_FILE, Windows, read_chunks
from shoal.store.formats import tensor_bounds
from shoal.store.hashing import MAX_CHUNK, chunk_hash
from shoal.store.pack import pack_files


def cut(path: Path, name: str = "") -> list[bytes]:
    fd = os.open(path, os.O_RDONLY)
    try:
        return [bytes(c) for c in read_chunks(fd, path.stat().st_size, name or path.name, Windows())]
    finally:
        os.close(fd)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, WHOLE_FILE, WHOLE_FILE + 1, 5_000_000, 20_000_000])
def test_chunks_are_the_file_and_within_bounds(tmp_path: Path, size: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(noise(size))
    chunks = cut(path)
    assert b"".join(chunks) == path.read_bytes()
    assert all(0 < len(c) <= MAX_CHUNK for c in chunks)
    assert len(chunks) == (0 if size == 0 else 1 if size <= WHOLE_FILE else len(chunks))


def test_monotonous_files_are_cut_too(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(10_000_000))
    assert b"".join(cut(path)) == path.read_bytes()


def test_the_cuts_never_change(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(noise(6_000_000, seed=42))
    assert chunk_hash(str([len(c) for c in cut(path)]).encode())[:16] == "9926bcf1b80d6837"


def test_an_insertion_moves_only_the_chunks_it_touches(tmp_path: Path) -> None:
    data = noise(30_000_000)
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(data[:11_000_003] + b"inserted" + data[11_000_003:])
    before = {chunk_hash(c) for c in cut(tmp_path / "a")}
    new = [c for c in cut(tmp_path / "b") if chunk_hash(c) not in before]
    assert sum(map(len, new)) < 4_000_000


def safetensors(tensors: dict[str, bytes]) -> bytes:
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(head)) + head + b"".join(tensors.values())


def torch_zip(tensors: dict[str, bytes], stem: str) -> bytes:
    import io

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        z.writestr(f"{stem}/data.pkl", b"pickle " * 100)
        for n, data in enumerate(tensors.values()):
            z.writestr(f"{stem}/data/{n}", data)
        z.writestr(f"{stem}/version", b"3\n")
    return out.getvalue()


def model(changed: int | None = None) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    for n in range(8):
        out[f"w{n}"] = noise(700_000 + n * 4, seed=100 * (n == changed) + n)
        out[f"b{n}"] = noise(3_000, seed=1000 + n)
    return out


@pytest.mark.parametrize("kind", ["safetensors", "zip"])
def test_a_changed_tensor_costs_itself_and_little_more(tmp_path: Path, kind: str) -> None:
    if kind == "safetensors":
        (tmp_path / "a.safetensors").write_bytes(safetensors(model()))
        (tmp_path / "bb.safetensors").write_bytes(safetensors({**model(changed=3), "extra": b"x"}))
    else:
        (tmp_path / "a.pt").write_bytes(torch_zip(model(), "checkpoint_1"))
        (tmp_path / "bb.pt").write_bytes(torch_zip(model(changed=3), "checkpoint_1000"))
    first, second = sorted(tmp_path.iterdir())
    known = pack_files([first]).where
    new = [c for c in pack_files([second]).manifest.files[0].chunks if c.hash not in known]
    assert 700_000 < sum(c.size for c in new) < 760_000


def test_ten_checkpoints_with_a_frozen_base_cost_little_more_than_one(tmp_path: Path) -> None:
    stored: dict[str, int] = {}
    for step in range(10):
        tensors = {f"base{n}": noise(800_000, seed=n) for n in range(8)} | {"head": noise(60_000, seed=500 + step)}
        path = tmp_path / f"step{step}.safetensors"
        path.write_bytes(safetensors(tensors))
        stored.update({c.hash: c.size for c in pack_files([path]).manifest.files[0].chunks})
    assert sum(stored.values()) <= 1.2 * path.stat().st_size


def test_a_file_that_lies_about_its_tensors_is_still_cut_whole(tmp_path: Path) -> None:
    body = noise(2_000_000)
    liars = {
        "huge.safetensors": struct.pack("<Q", 1 << 60) + body,
        "nojson.safetensors": struct.pack("<Q", 100) + body,
        "list.safetensors": struct.pack("<Q", 2) + b"[]" + body,
        "offsets.safetensors": struct.pack("<Q", 44) + b'{"a":{"data_offsets":[-5,99999999999999999]}}' + body,
        "text.safetensors": struct.pack("<Q", 29) + b'{"a":{"data_offsets":["x",{}]}' + body,
        "cut.pt": torch_zip(model(), "m")[:-30],
        "tail.pt": b"PK\x03\x04" + body + b"PK\x05\x06" + b"\xff" * 18,
        "not.bin": body,
    }
    for name, data in liars.items():
        (tmp_path / name).write_bytes(data)
        assert b"".join(cut(tmp_path / name)) == data, name


@given(st.binary(max_size=400), st.sampled_from(["x.safetensors", "x.pt"]))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_header_at_all_breaks_the_parser(tmp_path: Path, data: bytes, name: str) -> None:
    path = tmp_path / "f"
    path.write_bytes((b"PK\x03\x04" if name == "x.pt" else struct.pack("<Q", max(0, len(data) - 4))) + data)
    fd = os.open(path, os.O_RDONLY)
    bounds = tensor_bounds(fd, path.stat().st_size, name)
    os.close(fd)
    assert bounds == sorted(set(bounds))
    assert all(0 < at < path.stat().st_size for at in bounds)
