from __future__ import annotations

import io
import os
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import Corrupt
from shoal.store.codec import PLAIN, ZSTD, decode, encode
from shoal.store.hashing import MAX_CHUNK, chunk_hash
from shoal.store.wire import decode_frames, encode_frames, view_frames

chunk_lists = st.lists(
    st.one_of(st.binary(max_size=200), st.builds(lambda n: b"ab" * n, st.integers(0, 5000))), max_size=6
)


def named(datas: list[bytes]) -> list[tuple[str, bytes]]:
    return [(chunk_hash(d), d) for d in datas]


@given(chunk_lists, st.integers(1, 300))
@settings(max_examples=80, deadline=None)
def test_chunks_come_back_whatever_the_size_of_the_pieces(datas: list[bytes], piece: int) -> None:
    body = b"".join(encode_frames(named(datas)))
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    assert list(decode_frames(pieces)) == named(datas)
    assert list(decode_frames(io.BytesIO(body))) == named(datas)
    assert [(name, decode(codec, data)) for name, codec, data in view_frames([body])] == named(datas)


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=3), st.data())
@settings(max_examples=60, deadline=None)
def test_a_body_cut_anywhere_inside_a_frame_is_an_error(datas: list[bytes], data: st.DataObject) -> None:
    frames = [b"".join(encode_frames([chunk])) for chunk in named(datas)]
    body = b"".join(frames)
    whole = {sum(map(len, frames[:n])) for n in range(len(frames) + 1)}
    cut = data.draw(st.integers(0, len(body)).filter(lambda n: n not in whole))
    with pytest.raises(Corrupt, match="cut off"):
        list(decode_frames([body[:cut]]))


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_no_bytes_at_all_break_the_decoder(body: bytes) -> None:
    try:
        for name, data in decode_frames([body]):
            assert chunk_hash(data) == name
    except Corrupt:
        pass


@given(st.binary(min_size=60, max_size=300), st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_bit_never_passes(plain: bytes, data: st.DataObject) -> None:
    body = bytearray(b"".join(encode_frames(named([plain]))))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        got = list(decode_frames([bytes(body)]))
    except Corrupt:
        return
    assert got == named([plain])


def test_a_claimed_length_is_checked_before_anything_is_allocated() -> None:
    tracemalloc.start()
    for codec in (0, 1):
        with pytest.raises(Corrupt, match="limit"):
            list(decode_frames([struct.pack(">32sBI", bytes(32), codec, MAX_CHUNK + 1)]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_small_frame_that_unpacks_to_a_huge_chunk_is_refused() -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(MAX_CHUNK + 1))
    frame = struct.pack(">32sBI", bytes(32), ZSTD, len(bomb)) + bomb
    with pytest.raises(Corrupt, match="claims"):
        list(decode_frames([frame]))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compressobj().compress(b"") or bomb[:5]
    with pytest.raises(Corrupt):
        decode(ZSTD, unsized)


def test_text_is_compressed_and_noise_is_not() -> None:
    text, noise = b"import torch\n" * 10_000, os.urandom(130_000)
    assert encode(text)[0] == ZSTD
    assert encode(noise)[0] == PLAIN
    assert encode(text, compress=False)[0] == PLAIN
    assert len(b"".join(encode_frames(named([text, noise])))) < len(noise) * 1.1


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(Corrupt, match="codec 7"):
        decode(7, b"x")


def test_a_chunk_above_the_limit_is_not_sent() -> None:
    with pytest.raises(Corrupt, match="limit"):
        list(encode_frames([("0" * 64, bytes(MAX_CHUNK + 1))]))


def test_small_chunks_travel_in_large_pieces() -> None:
    pieces = list(encode_frames(named([os.urandom(1000) for _ in range(3000)])))
    assert len(pieces) == 3
