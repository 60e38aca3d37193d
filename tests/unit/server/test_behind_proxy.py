"""The reverse proxy's headers: believed from its address only, and of these only what it added itself."""

from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse

from shoal.core.errors import Refused
from shoal.core.settings import ServerSettings
from shoal.server.edge.exposure import proxies
from shoal.server.edge.proxies import BehindProxy
from shoal.testing.server import run_async

PROXY = ServerSettings(host="10.0.0.5", behind_proxy="10.0.0.2, 10.0.1.0/24")


def asked(address: str, *headers: tuple[str, str], settings: ServerSettings = PROXY):
    """Return the address, scheme and host that the app sees, or the status of a refusal."""
    seen, answers = [], []

    async def app(scope, receive, send):
        seen.append((scope["client"][0], scope["scheme"], dict(scope["headers"]).get(b"host", b"").decode()))
        await PlainTextResponse("ok")(scope, receive, send)

    async def send(message):
        answers.append(message)

    async def call():
        scope = {
            "type": "http", "client": (address, 5000), "scheme": "http", "method": "GET", "path": "/",
            "headers": [(b"host", b"inner"), *((k.lower().encode(), v.encode()) for k, v in headers)],
        }  # fmt: skip
        trusted = proxies(settings)
        await BehindProxy(app, trusted, only=bool(settings.behind_proxy))(scope, None, send)

    run_async(call)
    return seen[0] if seen else answers[0]["status"]


def test_the_proxy_says_who_it_is_and_how_they_came():
    forwarded = (
        ("X-Forwarded-For", "192.0.2.7"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Host", "shoal.example.org"),
    )
    assert asked("10.0.0.2", *forwarded) == ("192.0.2.7", "https", "shoal.example.org")
    assert asked("::ffff:10.0.0.2", *forwarded) == ("192.0.2.7", "https", "shoal.example.org")


def test_without_a_word_from_the_proxy_the_browser_spoke_https_to_it():
    assert asked("10.0.0.2") == ("10.0.0.2", "https", "inner")
    assert asked("10.0.0.2", ("X-Forwarded-Proto", "http"))[1] == "http"


@pytest.mark.parametrize(
    ("listed", "person"),
    [
        ("6.6.6.6, 192.0.2.7", "192.0.2.7"),
        ("6.6.6.6, 192.0.2.7, 10.0.1.9", "192.0.2.7"),
        ("192.0.2.7, nonsense", "10.0.0.2"),
        ("10.0.0.2", "10.0.0.2"),
        ("", "10.0.0.2"),
    ],
)
def test_only_the_address_before_our_proxies_counts(listed, person):
    assert asked("10.0.0.2", ("X-Forwarded-For", listed))[0] == person


def test_several_headers_are_read_in_their_order():
    assert asked("10.0.0.2", ("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "192.0.2.7"))[0] == "192.0.2.7"


def test_other_machines_are_refused_whatever_they_say():
    assert asked("10.0.0.3", ("X-Forwarded-For", "192.0.2.7")) == 403
    assert asked("127.0.0.1", ("X-Forwarded-For", "192.0.2.7"), ("X-Forwarded-Proto", "https")) == (
        "127.0.0.1",
        "http",
        "inner",
    )


def test_a_shared_server_on_loopback_has_its_proxy_there_as_before():
    old = ServerSettings(shared=True)
    assert asked("127.0.0.1", ("X-Forwarded-For", "192.0.2.7"), settings=old)[0] == "192.0.2.7"
    assert proxies(ServerSettings()) == ()
    assert proxies(ServerSettings(shared=True, host="10.0.0.5")) == ()


def test_an_address_that_is_none_is_refused():
    with pytest.raises(Refused, match="behind_proxy"):
        proxies(ServerSettings(behind_proxy="the proxy"))
