"""Decoders of what others send, each as a function of bytes that raises nothing but its own refusals.

The search with atheris (search.py) calls them a million times, the fast tier (tests/unit/store/test_decoders_fuzzed.py) a few hundred.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import shutil
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import zstandard

from shoal.agent.data import completeness
from shoal.cli.shared import tree_diff
from shoal.core.errors import BadArchive, Corrupt, InvalidSpec, NotFound
from shoal.sdk.saving import safetensors
from shoal.server.jobs.streams import decode_segment
from shoal.server.metrics.intake import decode_lines, select_new
from shoal.server.swarms import reports
from shoal.store.archives.unpack import Limits, unpack
from shoal.store.formats import tensor_bounds
from shoal.store.hashing import chunk_hash
from shoal.store.io.buffers import Buffers
from shoal.store.wire import WINDOW, decode_frames, encode_frames, read_frames


@dataclass(frozen=True, slots=True)
class Decoder:
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    """Valid inputs, from which the search begins."""


@cache
def _folder() -> Path:
    memory = Path("/dev/shm")  # noqa: S108
    return Path(tempfile.mkdtemp(prefix="shoal-fuzz-", dir=memory if memory.is_dir() else None))


def forget() -> None:
    """Remove the folder in which decoders of files work."""
    shutil.rmtree(_folder(), ignore_errors=True)
    _folder.cache_clear()


def _demand(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(otherwise)


_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz")
_LIMITS = Limits(max_bytes=1 << 20, max_entries=100)


def archive(data: bytes) -> None:
    """Unpack; the first byte chooses the kind. Nothing may appear beside the folder, and no link in it."""
    if not data:
        return
    home = _folder() / "archive"
    home.mkdir(exist_ok=True)
    packed, into = home / f"a{_SUFFIXES[data[0] % len(_SUFFIXES)]}", home / "into"
    packed.write_bytes(data[1:])
    try:
        with suppress(BadArchive):
            unpack(packed, into, limits=_LIMITS)
        inside = list(into.rglob("*")) if into.exists() else []
        strange = [path for path in inside if path.is_symlink() or not (path.is_file() or path.is_dir())]
        _demand(not strange, f"unpacked {strange}")
        beside = {path.name for path in home.iterdir()} - {packed.name, "into"}
        _demand(not beside, f"left {beside} beside the folder")
    finally:
        shutil.rmtree(home)


def _archives() -> list[bytes]:
    found = []
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as out:
        out.writestr(zipfile.ZipInfo("top/a.txt"), "a" * 50, zipfile.ZIP_DEFLATED)
        out.writestr(zipfile.ZipInfo("top/folder/b.txt"), "b")
    found.append(b"\0" + zipped.getvalue())
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as out:
        for name, kind in (("a.txt", tarfile.REGTYPE), ("folder", tarfile.DIRTYPE), ("l", tarfile.SYMTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, 3 * (kind == tarfile.REGTYPE), "a.txt"
            out.addfile(info, io.BytesIO(b"abc"))
    tar = plain.getvalue()
    packed = (tar, gzip.compress(tar, mtime=0), bz2.compress(tar), lzma.compress(tar))
    found += [bytes([number]) + data for number, data in enumerate(packed, 1)]
    return found


def header(data: bytes) -> None:
    """Read the header of a safetensors file as the store, the agent, the SDK and `diff` do."""
    path = _folder() / "model.safetensors"
    path.write_bytes(data)
    with path.open("rb") as file:
        bounds = tensor_bounds(file.fileno(), len(data), path.name)
        _demand(bounds == sorted(set(bounds)), f"bounds {bounds}")
        _demand(all(0 < at < len(data) for at in bounds), f"bounds {bounds}")
    completeness.problem(path.parent, [path.name])
    with suppress(Corrupt, NotFound):
        safetensors.read_index(path)
    with path.open("rb") as file, suppress(*tree_diff.DAMAGED):
        tree_diff._header(file, len(data))


def _headers() -> list[bytes]:
    whole = safetensors.header({"a": ("float32", (2, 2), 16), "b.weight": ("bfloat16", (4,), 8)}) + bytes(24)
    plain = json.dumps({"x": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}).encode()
    return [whole, struct.pack("<Q", len(plain)) + plain + bytes(4), struct.pack("<Q", 2) + b"{}"]


_NAMES = ("config.json", "trainer_state.json", "shoal.json", "model.index.json", ".metadata")


def checkpoint(data: bytes) -> None:
    """Look at a checkpoint whose JSON files contain anything; the first byte chooses the file."""
    if not data:
        return
    folder = _folder() / "checkpoint-5"
    folder.mkdir(exist_ok=True)
    name = _NAMES[data[0] % len(_NAMES)]
    try:
        (folder / name).write_bytes(data[1:])
        completeness.problem(folder, [name])
        completeness.facts(folder.name, folder, [name])
    finally:
        shutil.rmtree(folder)


def _checkpoints() -> list[bytes]:
    texts = (
        {"architectures": ["Tiny"], "transformers_version": "5.0"},
        {"global_step": 5, "log_history": [{"step": 5, "loss": 0.5, "eval_loss": 0.25}]},
        {"files": {"shoal.json": {"size": 1}}, "step": 5, "metrics": {"loss": 0.5}, "world": 1},
        {"weight_map": {"a": "model-1.safetensors"}},
    )
    shards = b"\4" + pickle.dumps({"files": ["__0_0.distcp", "__1_0.distcp"], "step": 5})
    return [*(bytes([number]) + json.dumps(text).encode() for number, text in enumerate(texts)), shards]


def record(data: bytes) -> None:
    """Decode records of the SDK and of the agent's log as the server does, and reports of a swarm."""
    taken = select_new(decode_lines(data), {})
    lengths = [{len(column) for column in columns} for columns in taken.series.values()]
    _demand(all(len(found) == 1 for found in lengths), "columns of different lengths")
    with suppress(InvalidSpec):
        decode_segment(data)
    with suppress(InvalidSpec):
        decode_segment(zstandard.ZstdCompressor(level=1).compress(data))
    for line in data.split(b"\n"):
        reports.parse(line)


def _records() -> list[bytes]:
    lines = (
        {"t": 1.5, "k": "s", "i": 1, "v": {"loss": 0.5, "note": "x"}, "rank": 0, "q": 0},
        {"t": 1.5, "r": 0, "e": "err", "m": "text é"},
        {"event": "progress", "round": 1, "samples": 5, "loss": 0.5},
    )
    texts = [json.dumps(line).encode() for line in lines]
    return [*texts, b"\n".join(texts), zstandard.ZstdCompressor(level=1).compress(b"\n".join(texts))]


def frames(data: bytes) -> None:
    """Decode a body of chunks in both ways; they agree, and what is accepted has the hash it claims."""
    found = []
    for read in (lambda: decode_frames([data]), lambda: read_frames(io.BytesIO(data), Buffers(WINDOW))):
        try:
            found.append([(name, bytes(plain)) for name, plain in read()])
        except Corrupt:
            found.append(None)
    _demand(found[0] == found[1], "the two decoders do not agree")
    for name, plain in found[0] or ():
        _demand(chunk_hash(plain) == name, f"chunk {name} has another hash")


def _frames() -> list[bytes]:
    chunks = [b"short", b"a" * 2000, bytes(range(256)) * 4, b""]
    return [b"".join(encode_frames([(chunk_hash(chunk), chunk) for chunk in some])) for some in (chunks, chunks[:1])]


DECODERS = {
    "archive": Decoder(archive, _archives),
    "header": Decoder(header, _headers),
    "checkpoint": Decoder(checkpoint, _checkpoints),
    "record": Decoder(record, _records),
    "frames": Decoder(frames, _frames),
}
