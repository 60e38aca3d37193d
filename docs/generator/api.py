"""docs/reference/api.md: every route, with who may call it and what goes in and out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

from fastapi import FastAPI, Response
from pydantic_core import PydanticUndefined

from generator._markdown import prose, table
from generator.schemas import name_of
from shoal.core.agents import TOKEN_HEADER
from shoal.core.people import Role
from shoal.core.swarm_views import INVITATION_HEADER
from shoal.server.app import PREFIX, create_app
from shoal.server.policy import AgentOnly, InWorkspace, Policy, Public, SignedIn, routes_of
from shoal.server.pool.join import JoinOnly
from shoal.server.swarms.invitations import InvitedOnly
from shoal.server.swarms.peers import PeerOnly

_TITLES = {
    "auth": "Accounts and sessions",
    "git": "Git hosts and named repositories",
    "agent": "Agents",
    "store": "Store",
    "swarm": "Peers of swarms",
}
_WHO = {Role.VIEWER: "members, owners and viewers", Role.MEMBER: "members and owners", Role.OWNER: "owners"}
_TEXT = f"""# HTTP API

All paths are below `{PREFIX}`, all bodies are JSON unless said otherwise, and what they hold is in [Schemas](schemas.md).

- **Who you are**: `Authorization: Bearer KEY`, with a key of `shoal key create` or the token of `POST /auth/sign-in`. Agents send
  `{TOKEN_HEADER}` with the token of their node.
- **Names or ids**: `{{workspace}}` and `{{job}}` take either.
- **Errors** have one shape everywhere: [Errors](errors.md#errors-over-http). Things of workspaces you are not in are `404`.
- **Durable**: a `2xx` to a request that changes something is sent after the change is on disk.

```bash
curl -s -H "Authorization: Bearer $SHOAL_API_KEY" "$SHOAL_URL{PREFIX}/workspaces/default/jobs?limit=5"
```
"""


def page() -> str:
    parts, section = [_TEXT], ""
    for route in routes():
        tag = route.tags[0]
        if tag != section:
            section = tag
            parts.append(f"## {_TITLES.get(tag, tag.capitalize())}\n")
        parts += [_route(route, method) for method in sorted(route.methods)]
    return "\n".join(parts)


@functools.cache
def routes() -> list[Any]:
    # No route is called, so no context is needed.
    app: FastAPI = create_app(None)  # type: ignore[arg-type]
    return list(routes_of(app))


def heading(route: Any, method: str) -> str:
    return f"{method} {route.path.removeprefix(PREFIX)}"


def schemas_in_use() -> Iterator[Any]:
    for route in routes():
        yield _reply(route)
        yield from (p.field_info.annotation for p in route.dependant.body_params)
        yield from (p.field_info.annotation for p in route.dependant.query_params)
    from shoal.core.jobs import LogPage

    yield LogPage  # in the events of `follow`


def who(policy: Policy) -> str:
    match policy:
        case Public():
            return "anyone"
        case InWorkspace(role=role, scope=scope):
            return f"{_WHO[role]} of the workspace; scope `{scope.value}`"
        case SignedIn(scope=scope, admin=admin):
            return f"{'admins of the server' if admin else 'anyone signed in'}; scope `{scope.value}`"
        case AgentOnly():
            return "the agent of a node"
        case JoinOnly():
            return "a machine that joins the pool"
        case InvitedOnly():
            return f"a machine with an invitation to a swarm, in `{INVITATION_HEADER}`"
        case PeerOnly():
            return "a peer of a swarm, with the token it was given, as a bearer"
    raise RuntimeError(f"say in {__name__} who passes {policy!r}")


def _route(route: Any, method: str) -> str:
    dependant = route.dependant
    policy = next(d.call for d in dependant.dependencies if isinstance(d.call, Policy))
    lines = [
        f"### `{heading(route, method)}`\n",
        prose(inspect.getdoc(route.endpoint) or ""),
        "",
        f"- Who: {who(policy)}",
    ]
    for param in dependant.body_params:
        lines.append(f"- Body: {name_of(param.field_info.annotation, 'schemas.md')}")
    if not dependant.body_params and "request" in inspect.signature(route.endpoint).parameters:
        lines.append("- Body: bytes")
    lines.append(f"- Reply: `{route.status_code or 200}`" + (f", {reply}" if (reply := _reply_text(route)) else ""))
    if dependant.query_params:
        rows = [
            (f"`{p.alias}`", name_of(p.field_info.annotation, "schemas.md"), _default(p))
            for p in dependant.query_params
        ]
        lines += ["", table(["Query", "Type", "Default"], rows).rstrip()]
    return "\n".join(lines) + "\n"


def _reply(route: Any) -> Any:
    return get_type_hints(route.endpoint, include_extras=True).get("return")


def _reply_text(route: Any) -> str:
    reply = _reply(route)
    if reply is None or reply is type(None):
        return ""
    if isinstance(reply, type) and issubclass(reply, Response):
        return "an event stream" if "Streaming" in reply.__name__ else "bytes"
    return name_of(reply, "schemas.md")


def _default(param: Any) -> str:
    value = param.field_info.default
    return "required" if value is PydanticUndefined else ("" if value is None else f"`{value}`")
