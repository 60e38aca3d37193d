"""Bytes become the lines a person would have seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.workers.lines import MAX_LINE, Redactor, Splitter, TokenBucket, pieces


def split(*chunks: bytes, splitter: Splitter | None = None, start: float = 100.0, pace: float = 0.0) -> list[bytes]:
    splitter = splitter or Splitter()
    out = []
    for n, chunk in enumerate(chunks):
        out += splitter.feed(chunk, start + n * pace)
    return out + splitter.close()


def test_lines_are_whole_however_they_arrive() -> None:
    assert split(b"one\ntw", b"o\n", b"three") == [b"one", b"two", b"three"]


def test_empty_lines_are_lines() -> None:
    assert split(b"a\n\nb\n") == [b"a", b"", b"b"]


def test_windows_line_ends_are_line_ends_even_when_cut_in_two() -> None:
    assert split(b"a\r\nb\r", b"\nc\r\n") == [b"a", b"b", b"c"]


@given(
    st.lists(
        st.binary(max_size=40).filter(lambda b: b"\n" not in b and b"\r" not in b and b"\x1b" not in b), max_size=20
    ),
    st.data(),
)
def test_any_cutting_gives_the_same_lines(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert split(*chunks) == lines


def test_a_progress_bar_becomes_its_first_and_last_state_when_it_is_quick() -> None:
    bar = [b"\r%3d%%|##| %d/100 [00:00<00:01]" % (n, n) for n in range(0, 101)]
    assert split(*bar, b"\n", pace=0.001) == [b"  0%|##| 0/100 [00:00<00:01]", b"100%|##| 100/100 [00:00<00:01]"]


def test_a_slow_progress_bar_is_shown_about_once_a_second() -> None:
    bar = [b"\r%d/100" % n for n in range(100)]
    shown = split(*bar, b"\n", pace=0.1)
    assert 9 <= len(shown) <= 12 and shown[-1] == b"99/100"


def test_a_bar_that_stands_still_is_shown_after_a_second_and_not_again() -> None:
    splitter = Splitter()
    assert splitter.feed(b"\r1/9\r2/9", 100.0) == [b"1/9"]
    assert splitter.waiting
    assert splitter.due(100.5) == []
    assert splitter.due(101.1) == [b"2/9"]
    assert splitter.due(103.0) == [] and not splitter.waiting
    assert splitter.feed(b"\n", 103.1) == []


def test_nested_bars_do_not_flood() -> None:
    refresh = b"".join(b"\n\rinner %d\x1b[A" % n for n in range(1000))
    assert len(split(b"\router 0", refresh, b"\router 1\n", pace=0.01)) <= 4


def test_a_line_after_a_bar_is_a_line() -> None:
    assert split(b"\r50%\r100%\nloss 0.5\n")[-2:] == [b"100%", b"loss 0.5"]


def test_an_over_long_line_is_split_between_characters() -> None:
    text = ("ä" * 20_000).encode()
    parts = [p for line in split(text[:30_001], text[30_001:], b"\n") for p in pieces(line)]
    assert b"".join(parts) == text
    assert all(len(p) <= MAX_LINE and p.decode() for p in parts)


def test_a_line_without_end_takes_no_memory() -> None:
    splitter = Splitter()
    out = [line for _ in range(100) for line in splitter.feed(b"x" * 10_000, 0.0)]
    assert sum(map(len, out)) > 900_000 and len(b"".join(splitter.close())) <= MAX_LINE


def test_dropped_bytes_are_counted_as_lines_and_the_next_line_is_whole() -> None:
    splitter = Splitter()
    assert splitter.skip(b"a\nb\nc\nhalf") == 3
    assert splitter.feed(b" whole\n", 0.0) == [b"half whole"]


def test_a_bucket_lets_its_burst_through_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=100, burst=1000, now=0.0)
    assert bucket.consume(1000) and not bucket.consume(1)
    bucket.refill(1.0)
    assert bucket.consume(100) and not bucket.consume(1)
    assert bucket.refill(1000.0) == 1000


def test_secrets_are_hidden_but_not_short_ones() -> None:
    redact = Redactor(["hunter2secret", "1", "hunter2secret-long"])
    assert redact(b"a hunter2secret-long b hunter2secret c 1") == b"a *** b *** c 1"


def test_every_line_of_a_secret_of_many_lines_is_hidden() -> None:
    redact = Redactor(["-----BEGIN KEY-----\nabcdefgh\nx"])
    assert redact(b"abcdefgh x") == b"*** x"


def test_a_secret_is_not_shown_by_the_split_of_an_over_long_line() -> None:
    redact = Redactor(["s3cr3t" * 20])
    for offset in range(MAX_LINE - 130, MAX_LINE + 130, 7):
        splitter = Splitter(redact, redact.longest)
        data = b"." * offset + b"s3cr3t" * 20 + b"." * 20_000
        lines = [
            line for n in range(0, len(data), 4096) for line in splitter.feed(data[n : n + 4096], 0.0)
        ] + splitter.close()
        assert b"s3cr3t" not in b"".join(redact(line) for line in lines), offset
