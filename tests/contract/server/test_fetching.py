"""T8: what is fetched arrives whole, however badly the other side behaves."""

import os
import threading
import time
import tracemalloc

import pytest
from fetches import DATA, fetch, fetching, refusal
from local_web import serving

from shoal.core.errors import Refused, SourceTooLarge, TimedOut, Unreachable
from shoal.server.artifacts.imports.http_answers import BadStatus
from shoal.server.ssrf_guard import Stopped


def test_a_file_arrives_with_its_name_and_type(web, tmp_path):
    web.pages["/a/train.csv"] = serving(DATA, Content_Type="text/csv; charset=utf-8")
    counted = []
    with fetching() as made:
        got = made.fetch(f"{web.url}/a/train.csv?x=1", tmp_path / "f", progress=counted.append)
    assert (tmp_path / "f").read_bytes() == DATA
    assert (got.size, got.name, got.content_type) == (len(DATA), "train.csv", "text/csv")
    assert sum(counted) == len(DATA)


def test_an_empty_file_is_a_file(web, tmp_path):
    web.pages["/f"] = serving(b"")
    assert fetch(f"{web.url}/f", tmp_path / "f").size == 0
    assert (tmp_path / "f").read_bytes() == b""


def test_memory_stays_flat(web, tmp_path):
    block = os.urandom(1 << 20)

    def page(request):
        request.head(200, Content_Length=str(48 << 20))
        for _ in range(48):
            request.write(block)

    web.pages["/big"] = page
    tracemalloc.start()
    try:
        assert fetch(f"{web.url}/big", tmp_path / "f").size == 48 << 20
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_a_broken_connection_is_gone_on_from_where_it_broke(web, tmp_path):
    web.pages["/f"] = serving(DATA, cut_at=[1_000_000, 2_500_000])
    counted = []
    with fetching() as made:
        made.fetch(f"{web.url}/f", tmp_path / "f", progress=counted.append)
    assert (tmp_path / "f").read_bytes() == DATA
    assert sum(counted) == len(DATA)
    offsets = [request.offset for request in web.seen]
    assert offsets[0] is None and len(offsets) == 3
    assert 0 < offsets[1] <= 1_000_000 < offsets[2] <= 2_500_000
    assert all(request.headers["If-Range"] == '"v1"' for request in web.seen[1:])


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_etag_it_starts_over(web, tmp_path, etag):
    web.pages["/f"] = serving(DATA, etag=etag, cut_at=[1_000_000])
    counted, expected = [], []
    with fetching() as made:
        made.fetch(f"{web.url}/f", tmp_path / "f", progress=counted.append, expect=expected.append)
    assert (tmp_path / "f").read_bytes() == DATA
    assert sum(counted) == len(DATA)
    assert expected == [len(DATA)] * 2
    assert [request.offset for request in web.seen] == [None, None]


def test_a_file_that_changed_meanwhile_is_fetched_anew(web, tmp_path):
    old, new = DATA, bytes(reversed(DATA))
    versions = iter([serving(old, etag='"old"', cut_at=[1_000_000]), serving(new, etag='"new"')])
    web.pages["/f"] = lambda request: next(versions)(request)
    fetch(f"{web.url}/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == new


@pytest.mark.parametrize("lie", ["bytes 5-9/3000000", "bytes 0-9/10", "nonsense", ""])
def test_a_part_that_is_not_the_one_asked_for_is_not_taken(web, tmp_path, lie):
    honest = serving(DATA, cut_at=[1_000_000])

    def page(request):
        if request.offset and len(web.seen) == 2:
            return request.send(206, b"other bytes", ETag='"v1"', **({"Content-Range": lie} if lie else {}))
        return honest(request)

    web.pages["/f"] = page
    fetch(f"{web.url}/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_what_is_always_cut_short_is_an_error_that_says_how_far_it_came(web, tmp_path):
    def page(request):
        request.head(200, Content_Length="9000000")
        request.write(b"x" * 500_000)
        request.cut()

    web.pages["/f"] = page
    text = refusal(f"{web.url}/f?sig=SECRET", tmp_path / "f", kind=Unreachable)
    assert "keeps breaking" in text and "500 kB of 9.0 MB" in text
    assert "SECRET" not in text


def test_a_chunked_body_that_is_cut_off_is_not_whole(web, tmp_path):
    def page(request):
        request.head(200, Transfer_Encoding="chunked")
        request.write_chunk(DATA[:1_000_000])
        if len(web.seen) < 3:
            return request.cut()
        request.write_chunk(DATA[1_000_000:])
        return request.write_chunk(b"")

    web.pages["/f"] = page
    fetch(f"{web.url}/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_chunked_body_with_an_etag_is_gone_on_from_where_it_broke(web, tmp_path):
    def page(request):
        if request.offset is not None:
            return serving(DATA)(request)
        request.head(200, Transfer_Encoding="chunked", ETag='"v1"')
        request.write_chunk(DATA[:1_000_000])
        return request.cut()

    web.pages["/f"] = page
    fetch(f"{web.url}/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA
    assert [request.offset for request in web.seen] == [None, 1_000_000]


def test_a_body_of_unknown_length_is_refused(web, tmp_path):
    def page(request):
        request.head(200, Connection="close")
        request.write(DATA)
        request.cut()

    web.pages["/f"] = page
    assert "announce its length" in refusal(f"{web.url}/f", tmp_path / "f", kind=Refused)


def test_what_is_too_large_is_refused_before_and_while_it_comes(web, tmp_path):
    web.pages["/said"] = serving(DATA)

    def unsaid(request):
        request.head(200, Transfer_Encoding="chunked")
        while True:
            request.write_chunk(b"x" * 65_536)

    web.pages["/unsaid"] = unsaid
    for page in ("said", "unsaid"):
        assert "larger than" in refusal(f"{web.url}/{page}", tmp_path / page, kind=SourceTooLarge, max_bytes=1_000_000)
        assert (tmp_path / page).stat().st_size <= 1_000_000


@pytest.mark.parametrize("trickle", [False, True])
def test_a_server_that_stops_sending_is_given_up(web, tmp_path, trickle):
    over = threading.Event()

    def page(request):
        request.head(200, Content_Length="1000000")
        while not over.wait(0.05):
            if trickle:
                request.write(b"x")

    web.pages["/f"] = page
    started = time.monotonic()
    refusal(f"{web.url}/f", tmp_path / "f", kind=TimedOut, stall_s=0.2)
    assert time.monotonic() - started < 10
    over.set()


def test_a_stop_ends_even_a_silent_wait_and_the_next_fetch_goes_on(web, tmp_path):
    arrived, over = threading.Event(), threading.Event()

    def page(request):
        if request.offset is None:
            request.head(200, Content_Length=str(len(DATA)), ETag='"v1"')
            request.write(DATA[:1_000_000])
            arrived.set()
            over.wait(20)
        else:
            serving(DATA)(request)

    web.pages["/f"] = page

    def stop():
        return arrived.is_set() and (tmp_path / "f").stat().st_size == 1_000_000

    started = time.monotonic()
    with pytest.raises(Stopped):
        fetch(f"{web.url}/f", tmp_path / "f", stop=stop)
    assert time.monotonic() - started < 5
    over.set()
    fetch(f"{web.url}/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == DATA
    assert web.seen[-1].offset == 1_000_000


def test_a_fetch_that_is_done_asks_nobody_again(web, tmp_path):
    web.pages["/f"] = serving(DATA)
    first = fetch(f"{web.url}/f", tmp_path / "f")
    assert fetch(f"{web.url}/f", tmp_path / "f") == first
    assert len(web.seen) == 1


def test_errors_that_pass_are_waited_for(web, tmp_path):
    def page(request):
        if len(web.seen) == 1:
            return request.send(503, Retry_After="0")
        return request.send(429, Retry_After="0") if len(web.seen) == 2 else request.send(200, b"now")

    web.pages["/f"] = page
    fetch(f"{web.url}/f", tmp_path / "f", first_wait_s=60)
    assert (tmp_path / "f").read_bytes() == b"now"


@pytest.mark.parametrize(
    ("status", "words"), [(404, "nothing at"), (403, "refuses access"), (401, "sign in"), (418, "418")]
)
def test_a_refusal_is_told_at_once_and_without_the_query(web, tmp_path, status, words):
    web.pages["/f"] = lambda request: request.send(status)
    text = refusal(f"{web.url}/f?sig=SECRET", tmp_path / "f", kind=BadStatus)
    assert words in text and "SECRET" not in text
    assert len(web.seen) == 1


def test_what_is_compressed_on_the_way_is_refused_unless_its_name_says_so(web, tmp_path):
    web.pages["/a.csv"] = web.pages["/a.csv.gz"] = lambda request: request.send(
        200, b"\x1f\x8b", Content_Encoding="gzip"
    )
    assert "compressed" in refusal(f"{web.url}/a.csv", tmp_path / "a")
    assert fetch(f"{web.url}/a.csv.gz", tmp_path / "b").size == 2
    assert web.seen[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ('attachment; filename="data.tar.gz"', "data.tar.gz"),
        ('attachment; filename="../../etc/passwd"', "passwd"),
        ("attachment; filename=\"..\"; filename*=UTF-8''%2e%2e", "download"),
        ('attachment; filename="a\\\\b\\\\c.zip"', "c.zip"),
        ("", "download"),
    ],
)
def test_the_name_is_the_announced_one_if_that_is_safe(web, tmp_path, header, name):
    web.pages["/x/download"] = lambda request: request.send(200, b"x", Content_Disposition=header)
    assert fetch(f"{web.url}/x/download", tmp_path / "f").name == name


def test_small_things_are_read_into_memory_within_a_limit(web):
    web.pages["/n.ipynb"] = lambda request: request.send(200, b"{}", X_Kind="notebook")
    with fetching() as made:
        body, headers = made.read(f"{web.url}/n.ipynb")
    assert (body, headers["x-kind"]) == (b"{}", "notebook")
    with fetching(max_bytes=1) as made, pytest.raises(SourceTooLarge):
        made.read(f"{web.url}/n.ipynb")
