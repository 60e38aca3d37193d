"""Conversation with an issuer: its description, its keys, and the exchange of a code for an ID token.

Every fetch is bounded in time and size, follows no redirects, and goes only where the issuer's own description says. Of all
request threads at most four wait for issuers, so a slow one does not stop the server.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import httpx

from shoal.core.errors import NotSignedIn, Unreachable
from shoal.server.people.oidc.id_token import Key
from shoal.server.people.oidc.services import Service, is_secure

_TIMEOUT_S = 10.0
_LARGEST = 256 * 1024
_FRESH_S = 3600.0
_KEYS_AGAIN_S = 30.0
"""Shortest time between two fetches of the keys because of an unknown key id, which anyone could make up."""
_DESCRIPTION = "/.well-known/openid-configuration"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints of an issuer, from its own description."""

    authorize: str
    token: str
    keys: str
    secret_in_body: bool
    """True if the issuer wants the client secret in the form instead of an Authorization header."""


@dataclass(slots=True)
class _Known:
    endpoints: Endpoints
    fetched_at: float
    keys: list[Key]
    keys_at: float


class Issuers:
    """Descriptions and keys of issuers, kept for an hour.

    `_lock` protects the dictionary only; it is not held while an issuer is asked, so two threads may both fetch.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._slots = threading.BoundedSemaphore(4)
        self._known: dict[str, _Known] = {}

    def endpoints(self, service: Service) -> Endpoints:
        return self._describe(service).endpoints

    def keys(self, service: Service, key_id: str) -> list[Key]:
        """Return the keys with this id; all keys for an empty id. Fetches them if the id is new, as issuers change keys."""
        known = self._describe(service)
        age_s = self._clock() - known.keys_at
        found = _with_id(known.keys, key_id)
        if age_s > _FRESH_S or (not found and age_s > _KEYS_AGAIN_S):
            with self._client(service) as client:
                answer = _fetch(client.build_request("GET", known.endpoints.keys), client)
            keys = answer.get("keys")
            known.keys = [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []
            known.keys_at = self._clock()
            found = _with_id(known.keys, key_id)
        return found

    def exchange(self, service: Service, *, code: str, verifier: str, redirect_uri: str) -> str:
        """Return the ID token for a code."""
        endpoints = self.endpoints(service)
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri,
                "code_verifier": verifier, "client_id": service.client_id}  # fmt: skip
        auth = None
        if service.client_secret and endpoints.secret_in_body:
            form["client_secret"] = service.client_secret
        elif service.client_secret:
            auth = httpx.BasicAuth(_quoted(service.client_id), _quoted(service.client_secret))
        with self._client(service) as client:
            request = client.build_request("POST", endpoints.token, data=form, headers={"Accept": "application/json"})
            answer = _fetch(request, client, auth=auth)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise NotSignedIn(f"{service.title} returned no ID token. Is the scope 'openid' allowed for this client?")
        return token

    def _describe(self, service: Service) -> _Known:
        with self._lock:
            known = self._known.get(service.issuer)
        if known is not None and self._clock() - known.fetched_at < _FRESH_S:
            return known
        with self._client(service) as client:
            answer = _fetch(client.build_request("GET", service.issuer.rstrip("/") + _DESCRIPTION), client)
        fresh = _Known(_endpoints(service, answer), self._clock(), [], float("-inf"))
        with self._lock:
            self._known[service.issuer] = fresh
        return fresh

    @contextmanager
    def _client(self, service: Service) -> Iterator[httpx.Client]:
        if not self._slots.acquire(blocking=False):
            raise Unreachable("Too many people are signing in at once; try again shortly.")
        try:
            with httpx.Client(timeout=_TIMEOUT_S, follow_redirects=False) as client:
                yield client
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"{service.title} ({service.issuer}) cannot be reached: {why}") from None
        finally:
            self._slots.release()


def _endpoints(service: Service, answer: dict[str, Any]) -> Endpoints:
    if answer.get("issuer") != service.issuer:
        raise Unreachable(
            f"{service.issuer} says that its issuer is {str(answer.get('issuer'))[:200]!r}.",
            hint=f"shoal server oidc add {service.name} --issuer {str(answer.get('issuer'))[:200]} …",
        )
    urls = [str(answer.get(name, "")) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
    if not all(map(is_secure, urls)):
        raise Unreachable(f"{service.issuer} describes no endpoints that are reached by https.")
    ways = answer.get("token_endpoint_auth_methods_supported")
    in_body = isinstance(ways, list) and "client_secret_basic" not in ways and "client_secret_post" in ways
    return Endpoints(urls[0], urls[1], urls[2], secret_in_body=in_body)


def _fetch(request: httpx.Request, client: httpx.Client, *, auth: httpx.Auth | None = None) -> dict[str, Any]:
    body = bytearray()
    deadline = time.monotonic() + _TIMEOUT_S
    response = client.send(request, stream=True, auth=auth)
    try:
        for part in response.iter_bytes():
            body += part
            if len(body) > _LARGEST or time.monotonic() > deadline:
                raise Unreachable(f"{request.url.host} sent more than expected, or too slowly.")
    finally:
        response.close()
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if response.status_code != 200 or not isinstance(answer, dict):
        # The issuer's words, such as 'invalid_client', say what is wrong; they contain no secret of ours.
        words = [str(answer[name])[:200] for name in ("error", "error_description") if name in answer] if isinstance(answer, dict) else []  # fmt: skip
        raise NotSignedIn(
            f"The sign-in service answered {response.status_code} at {request.url.path}: {': '.join(words) or 'no reason given'}."
        )
    return answer


def _with_id(keys: list[Key], key_id: str) -> list[Key]:
    return [key for key in keys if not key_id or key.get("kid", key_id) == key_id]


def _quoted(text: str) -> str:
    """Encode an id or secret for an Authorization header, as RFC 6749, 2.3.1 requires."""
    return quote_plus(text)
