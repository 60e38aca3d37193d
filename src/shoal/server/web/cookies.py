"""The session cookie. It holds a session's token, never an API key, and only our own pages can send it with a change."""

from __future__ import annotations

from datetime import datetime

from starlette.requests import HTTPConnection
from starlette.responses import Response

from shoal.core.schema import utcnow

_NAME = "shoal_session"


def session_token(connection: HTTPConnection) -> str:
    """The token the browser holds, or nothing."""
    return connection.cookies.get(_name(connection), "")


def set_session(response: Response, connection: HTTPConnection, token: str, expires_at: datetime) -> None:
    response.set_cookie(
        _name(connection),
        token,
        max_age=max(0, int((expires_at - utcnow()).total_seconds())),
        httponly=True,
        samesite="lax",
        secure=_is_secure(connection),
        path="/",
    )


def clear_session(response: Response, connection: HTTPConnection) -> None:
    response.delete_cookie(_name(connection), path="/", httponly=True, samesite="lax", secure=_is_secure(connection))


def _name(connection: HTTPConnection) -> str:
    """Over https the browser itself guards the name; on loopback, servers of several ports share one jar."""
    if _is_secure(connection):
        return f"__Host-{_NAME}"
    port = connection.url.port
    return f"{_NAME}_{port}" if port else _NAME


def _is_secure(connection: HTTPConnection) -> bool:
    return connection.url.scheme == "https"
