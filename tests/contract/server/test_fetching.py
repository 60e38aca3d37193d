"""T8: a URL leads nowhere it must not, and what is fetched arrives whole, however badly the other side behaves."""

import datetime
import os
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.core.errors import InvalidSpec, NotFound, Refused, ShoalError, SourceTooLarge, TimedOut, Unreachable
from shoal.server.services.fetching import Fetcher
from shoal.server.services.import_answers import BadStatus
from shoal.server.services.import_guard import Guard, Stopped, is_public
from shoal.server.services.import_part import PartFile

DATA = os.urandom(3_000_000)
OPEN = Guard(private=True)


class Request:
    """What a path of a `Web` is called with: look at it, then answer."""

    def __init__(self, handler):
        self.handler, self.path = handler, handler.path
        self.headers: Message = handler.headers

    def send(self, status=200, body=b"", **headers):
        self.head(status, **{"Content-Length": str(len(body)), **headers})
        self.handler.wfile.write(body)

    def head(self, status=200, **headers):
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.end_headers()

    def write(self, data):
        self.handler.wfile.write(data)
        self.handler.wfile.flush()

    def write_chunk(self, data):
        self.write(b"%x\r\n%s\r\n" % (len(data), data))

    def cut(self):
        self.handler.wfile.flush()
        self.handler.connection.shutdown(socket.SHUT_RDWR)

    @property
    def offset(self):
        """Where the asked-for range starts, None without one."""
        asked = self.headers.get("Range")
        return int(asked.removeprefix("bytes=").rstrip("-")) if asked else None


class Web:
    """A web server whose every path is a function."""

    def __init__(self, address="127.0.0.1", port=0, tls=None):
        self.pages: dict[str, Callable[[Request], None]] = {}
        self.seen: list[Request] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                request = Request(self)
                web.seen.append(request)
                page = web.pages.get(self.path.partition("?")[0])
                try:
                    page(request) if page else request.send(404)
                except OSError:
                    self.close_connection = True

            def handle_one_request(self):
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer((address, port), Handler)
        self.server.daemon_threads = True
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        self.url = f"{'https' if tls else 'http'}://{address}:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def web_server(**options):
    web = Web(**options)
    try:
        yield web
    finally:
        web.close()


def serving(body, *, etag='"v1"', cut_at=(), **headers):
    """A file that can be had in parts; the n-th answer breaks off at the n-th offset of `cut_at`."""
    cuts = iter(cut_at)

    def page(request):
        start = request.offset or 0
        if start and request.headers.get("If-Range") != etag:
            start = 0
        common = {"ETag": etag, **headers} if etag else headers
        if start:
            common["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        cut = next(cuts, None)
        request.head(206 if start else 200, **{"Content-Length": str(len(body) - start), **common})
        request.write(body[start:cut])
        if cut is not None:
            request.cut()

    return page


class Canary:
    """Listens everywhere on this machine and remembers that somebody came."""

    def __init__(self):
        self.visits = 0
        self._socket = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                return
            self.visits += 1
            visitor.close()

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def web():
    with web_server() as made:
        yield made


@pytest.fixture
def canary():
    made = Canary()
    yield made
    made.close()


@contextmanager
def fetching(guard=OPEN, **options):
    options = {"max_bytes": 100_000_000, "first_wait_s": 0.01, "stall_s": 10.0} | options
    with Fetcher(guard, **options) as made:
        yield made


def fetch(url, path, guard=OPEN, **options):
    with fetching(guard, **options) as made:
        return made.fetch(url, path)


def refusal(url, path, guard=OPEN, kind=ShoalError, **options):
    with pytest.raises(kind) as caught:
        fetch(url, path, guard, **options)
    assert "\n" not in caught.value.message
    return caught.value.message


# --- arriving whole ---


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
    assert "breaks off" in text and "500 kB of 9.0 MB" in text
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
    assert "how long" in refusal(f"{web.url}/f", tmp_path / "f", kind=Refused)


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


@pytest.mark.parametrize(("status", "words"), [(404, "nothing at"), (403, "not open"), (401, "sign in"), (418, "418")])
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


# --- part files ---


def test_bytes_beyond_the_note_are_not_trusted(tmp_path):
    with PartFile(tmp_path / "p") as part:
        part.start(version='"v"', total=100)
        part.write(b"a" * 60)
    with (tmp_path / "p").open("ab") as file:
        file.write(b"\0" * 40)  # as after a power cut
    with PartFile(tmp_path / "p") as part:
        assert (part.offset, part.version, part.total) == (60, '"v"', 100)
        part.write(b"b" * 40)
        part.finish()
    assert (tmp_path / "p").read_bytes() == b"a" * 60 + b"b" * 40


@pytest.mark.parametrize("damage", ["shorter file", "torn note", "no note"])
def test_a_part_that_lost_something_starts_over(tmp_path, damage):
    with PartFile(tmp_path / "p") as part:
        part.start(version='"v"', total=100)
        part.write(b"a" * 60)
    if damage == "shorter file":
        os.truncate(tmp_path / "p", 10)
    elif damage == "torn note":
        (tmp_path / "p.json").write_text('{"version": "')
    else:
        (tmp_path / "p.json").unlink()
    with PartFile(tmp_path / "p") as part:
        assert (part.offset, part.version) == (0, None)
    assert (tmp_path / "p").stat().st_size == 0


# --- leading nowhere it must not ---

PUBLIC = ("93.184.216.34", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808")
INSIDE = (
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
    *("169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "198.18.0.1", "192.0.2.1", "224.0.0.1"),
    *("239.1.1.1", "240.0.0.1", "255.255.255.255", "168.63.129.16", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1"),
    *("fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::808:808", "2002:7f00:1::", "2001:0:7f00:1::1", "2001:db8::1", "fec0::1", "100::1"),
)  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_the_world_is_public(address):
    assert is_public(address)


@pytest.mark.parametrize("address", INSIDE)
def test_everything_inside_is_not(address):
    assert not is_public(address)


TRICKS = (
    *("http://127.0.0.1:{p}/", "http://localhost:{p}/", "http://LOCALHOST:{p}/", "http://localhost.:{p}/"),
    *("http://127.1:{p}/", "http://127.0.1:{p}/", "http://2130706433:{p}/", "http://0x7f000001:{p}/"),
    *("http://0x7f.0.0.1:{p}/", "http://0177.0.0.1:{p}/", "http://017700000001:{p}/", "http://0:{p}/", "http://0.0.0.0:{p}/"),
    *("http://127.0.0.1.:{p}/", "http://127.000.000.001:{p}/", "http://134744072:{p}/", "http://[::]:{p}/", "http://[::1]:{p}/"),
    *("http://[::ffff:127.0.0.1]:{p}/", "http://[::ffff:7f00:1]:{p}/", "http://[0:0:0:0:0:ffff:127.0.0.1]:{p}/"),
    *("http://[::127.0.0.1]:{p}/", "http://[64:ff9b::127.0.0.1]:{p}/", "http://[fe80::1%25lo]:{p}/"),
    *("http://①②⑦.⓪.⓪.①:{p}/", "http://127。0。0。1:{p}/", "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{p}/", "http://%31%32%37.0.0.1:{p}/"),
    *("http://127.0.0.1:{p}#@example.org/", "http://example.org@127.0.0.1:{p}/", "http://example.org:80@127.0.0.1:{p}/"),
    *("http://example.org\\@127.0.0.1:{p}/", "http://127.0.0.1:{p}\\@example.org/", "http:\\\\127.0.0.1:{p}/"),
    *("http://127.0.0.1\t:{p}/", "http://127.0.0.1:{p}/\r\nHost: x", " http://127.0.0.1:{p}/", "http:127.0.0.1:{p}/"),
    *("//127.0.0.1:{p}/", "https://127.0.0.1:{p}/", "https://localhost:{p}/", "HTTP://127.0.0.1:{p}/", "http:///127.0.0.1:{p}/"),
    *("file:///etc/passwd", "file://127.0.0.1:{p}/", "gopher://127.0.0.1:{p}/_x", "dict://127.0.0.1:{p}/", "ftp://127.0.0.1:{p}/"),
    *("jar:http://127.0.0.1:{p}/!/", "http://127.0.0.1:{p}:80/", "http://[127.0.0.1]:{p}/", "http://[::1%0a]:{p}/", "http://", ""),
    *("http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://168.63.129.16/"),
)  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS)
def test_no_spelling_leads_inside(canary, tmp_path, trick):
    refusal(trick.format(p=canary.port), tmp_path / "f", guard=Guard(), stall_s=1.0)
    assert canary.visits == 0


def test_the_canary_would_have_noticed(canary, tmp_path):
    for host in ("127.0.0.1", "localhost", "[::1]", "2130706433"):
        before = canary.visits
        refusal(f"http://{host}:{canary.port}/", tmp_path / "f", kind=Unreachable)
        assert canary.visits > before, host


def test_a_name_that_resolves_inside_is_refused(canary, tmp_path):
    for answer in (["127.0.0.1"], ["::1"], ["93.184.216.34", "127.0.0.1"], ["10.0.0.1"], []):
        guard = Guard(resolve=lambda host, port, answer=answer: answer)
        assert "private network" in refusal(f"http://evil.example:{canary.port}/", tmp_path / "f", guard, InvalidSpec)
    assert canary.visits == 0


def only_second_loopback(**options):
    """127.0.0.2 plays the public internet."""
    return Guard(allows=lambda address: address == "127.0.0.2", **options)


def test_rebinding_between_check_and_connection_finds_no_gap(tmp_path):
    answers = iter([["127.0.0.2"], ["127.0.0.1"], ["127.0.0.1"]])
    asked = []

    def resolve(host, port):
        asked.append(host)
        return next(answers)

    with web_server(address="127.0.0.2") as outside, web_server(port=outside.port) as inside:
        outside.pages["/f"] = lambda request: request.send(200, b"from outside", Connection="close")
        inside.pages["/f"] = lambda request: request.send(200, b"from inside")
        url = f"http://rebind.example:{outside.port}/f"
        with fetching(only_second_loopback(resolve=resolve)) as made:
            made.fetch(url, tmp_path / "f")
            assert (tmp_path / "f").read_bytes() == b"from outside"
            assert asked == ["rebind.example"]
            with pytest.raises(InvalidSpec):
                made.fetch(url, tmp_path / "g")
        assert inside.seen == []
        assert outside.seen[0].headers["Host"] == f"rebind.example:{outside.port}"


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:{p}/", "//127.0.0.1:{p}/", "http://localhost:{p}/", "http://2130706433:{p}/", "file:///etc/passwd",
               "http://user:pw@127.0.0.1:{p}/", "http://[::ffff:127.0.0.1]:{p}/", "gopher://127.0.0.1:{p}/", "http://["]
)  # fmt: skip
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_leads_inside(canary, tmp_path, target, status):
    with web_server(address="127.0.0.2") as outside:
        outside.pages["/f"] = lambda request: request.send(status, Location=target.format(p=canary.port))
        refusal(f"{outside.url}/f", tmp_path / "f", guard=only_second_loopback())
        assert len(outside.seen) == 1
    assert canary.visits == 0


def test_five_redirects_are_followed_and_no_sixth(web, tmp_path):
    for n in range(9):
        web.pages[f"/{n}"] = lambda request, n=n: request.send(
            302, Location=f"/{n + 1}" if n % 2 else f"{web.url}/{n + 1}"
        )
    web.pages["/5"] = web.pages["/end"] = lambda request: request.send(200, b"end")
    assert fetch(f"{web.url}/0", tmp_path / "f").size == 3
    web.pages["/5"] = lambda request: request.send(302, Location="/end")
    assert "more than 5 times" in refusal(f"{web.url}/0", tmp_path / "g", kind=Refused)


def test_what_signs_us_in_stays_with_its_host(web, tmp_path):
    with web_server() as other:
        web.pages["/f"] = lambda request: request.send(302, Location="/here")
        web.pages["/here"] = lambda request: request.send(302, Location=f"{other.url}/f")
        other.pages["/f"] = lambda request: request.send(200, b"x")
        with fetching() as made:
            made.fetch(f"{web.url}/f", tmp_path / "f", headers={"Authorization": "Bearer SECRET"})
        assert [r.headers["Authorization"] for r in web.seen] == ["Bearer SECRET"] * 2
        assert other.seen[0].headers["Authorization"] is None


def test_what_the_operator_named_is_reachable_and_only_that(web, canary, tmp_path):
    guard = Guard(trusted=frozenset({("127.0.0.1", web.port)}))
    web.pages["/f"] = lambda request: request.send(200, b"x")
    fetch(f"{web.url}/f", tmp_path / "f", guard)
    web.pages["/g"] = lambda request: request.send(302, Location=f"http://127.0.0.1:{canary.port}/")
    refusal(f"{web.url}/g", tmp_path / "g", guard, InvalidSpec)
    assert canary.visits == 0


def test_proxies_of_the_environment_are_not_used(web, canary, tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
    web.pages["/f"] = lambda request: request.send(200, b"x")
    fetch(f"{web.url}/f", tmp_path / "f")
    assert canary.visits == 0


def test_a_host_that_does_not_exist_is_named(tmp_path):
    def resolve(host, port):
        raise NotFound(f"The host '{host}' cannot be found.")

    assert "'no.example' cannot be found" in refusal("http://no.example/", tmp_path / "f", Guard(resolve=resolve))


# --- TLS ---


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def secure(tmp_path):
    """An https server for data.example, and what trusts it."""
    cert, key = certificate(tmp_path, "data.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    names = []
    context.sni_callback = lambda _, name, __: names.append(name)
    with web_server(tls=context) as made:
        made.names, made.trust = names, ssl.create_default_context(cafile=str(cert))
        yield made


def test_tls_is_asked_for_by_name_though_the_address_is_pinned(secure, tmp_path):
    secure.pages["/f"] = lambda request: request.send(200, b"safe")
    guard = Guard(private=True, resolve=lambda host, port: ["127.0.0.1"])
    fetch(f"https://data.example:{secure.port}/f", tmp_path / "f", guard, tls=secure.trust)
    assert (tmp_path / "f").read_bytes() == b"safe"
    assert secure.names == ["data.example"]
    assert secure.seen[0].headers["Host"] == f"data.example:{secure.port}"


@pytest.mark.parametrize("case", ["another name", "unknown issuer"])
def test_a_certificate_that_does_not_fit_is_refused_at_once(secure, tmp_path, case):
    guard = Guard(private=True, resolve=lambda host, port: ["127.0.0.1"])
    host, tls = ("other.example", secure.trust) if case == "another name" else ("data.example", None)
    text = refusal(f"https://{host}:{secure.port}/f", tmp_path / "f", guard, Refused, tls=tls, first_wait_s=60)
    assert "certificate" in text
    assert secure.seen == []


def test_no_redirect_leaves_https(secure, web, tmp_path):
    secure.pages["/f"] = lambda request: request.send(302, Location=f"{web.url}/f")
    guard = Guard(private=True, resolve=lambda host, port: ["127.0.0.1"])
    assert "https to http" in refusal(f"https://data.example:{secure.port}/f", tmp_path / "f", guard, tls=secure.trust)
    assert web.seen == []
