"""Cookies of the console: the session, a sign-in under way, and the workspace last visited.

The session cookie holds a session token, never an API key. Only the console's own pages can send it with a change.
"""

from __future__ import annotations

from datetime import datetime

from starlette.requests import HTTPConnection
from starlette.responses import Response

from shoal.core.schema import utcnow

_NAME = "shoal_session"
_WORKSPACE = "shoal_workspace"
_SIGN_IN = "shoal_sign_in"
_WORKSPACE_LIFE_S = 400 * 86_400


def session_token(connection: HTTPConnection) -> str:
    """Return the session token that the browser sent, or an empty string."""
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


def sign_in_under_way(connection: HTTPConnection) -> str:
    """Return the sealed state of a sign-in with a service that this browser began, or an empty string."""
    return connection.cookies.get(_name(connection, _SIGN_IN), "")


def keep_sign_in(response: Response, connection: HTTPConnection, sealed: str, life_s: int) -> None:
    """Keep the state of a sign-in with a service. `lax`: the issuer's page sends the browser back to ours."""
    name, secure = _name(connection, _SIGN_IN), _is_secure(connection)
    response.set_cookie(name, sealed, max_age=life_s, httponly=True, samesite="lax", secure=secure, path="/")


def clear_sign_in(response: Response, connection: HTTPConnection) -> None:
    name, secure = _name(connection, _SIGN_IN), _is_secure(connection)
    response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=secure)


def last_workspace(connection: HTTPConnection) -> str:
    """Return the id of the workspace last visited in this browser, or an empty string. It grants no access."""
    return connection.cookies.get(_name(connection, _WORKSPACE), "")


def keep_workspace(response: Response, connection: HTTPConnection, workspace_id: str) -> None:
    """Remember the workspace for pages outside any workspace, and for the next visit."""
    if last_workspace(connection) == workspace_id:
        return
    response.set_cookie(
        _name(connection, _WORKSPACE),
        workspace_id,
        max_age=_WORKSPACE_LIFE_S,
        httponly=True,
        samesite="lax",
        secure=_is_secure(connection),
        path="/",
    )


def _name(connection: HTTPConnection, base: str = _NAME) -> str:
    """Return the cookie's name. Over https the prefix `__Host-` makes the browser protect it; over http it contains the
    port, because servers on different ports of one host share their cookies."""
    if _is_secure(connection):
        return f"__Host-{base}"
    port = connection.url.port
    return f"{base}_{port}" if port else base


def _is_secure(connection: HTTPConnection) -> bool:
    return connection.url.scheme == "https"
