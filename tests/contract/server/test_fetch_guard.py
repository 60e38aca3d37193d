"""T8: a URL leads nowhere it must not: by no spelling, no name, no redirect and no proxy."""

import pytest
from fetches import fetch, fetching, refusal
from local_web import web_server

from shoal.core.addresses import is_public
from shoal.core.errors import InvalidSpec, NotFound, Refused, Unreachable
from shoal.server.ssrf_guard import Guard

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
