"""A browser without a screen: keeps cookies, sends the headers a browser sends, does not follow redirects."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import httpx
from fastapi import FastAPI

from shoal.server.context import Context
from shoal.server.models.users import User
from shoal.server.people.sign_in import start_session
from shoal.testing.server import Person, run_async

BASE = "http://127.0.0.1:8000"


class Browser:
    def __init__(self, app: FastAPI, base: str = BASE):
        self.app, self.base = app, base
        self.cookies = httpx.Cookies()

    def enter(self, ctx: Context, person: Person) -> Browser:
        """Signed in, without going through the form."""
        session = ctx.db.write(lambda s: start_session(s, s.get_one(User, person.user_id)))
        self.cookies.set("shoal_session_8000", session.token)
        return self

    def request(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        given = {"Accept": "text/html", **(headers or {})}

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=self.base, cookies=self.cookies) as client:
                answer = await client.request(method, path, headers=given, **options)
                self.cookies = client.cookies
                return answer

        return run_async(send)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, form: dict[str, Any] | None = None, *, origin: str | None = BASE,
             headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:  # fmt: skip
        """Send a form like one of the console's own pages, unless another origin is given."""
        sent = {"Content-Type": "application/x-www-form-urlencoded", **({"Origin": origin} if origin else {})}
        body = urlencode(form or {}, doseq=True)
        return self.request("POST", path, headers=sent | (headers or {}), content=body, **options)
