"""Every number a route takes, at its worst: nothing a caller sends is a bug of the server's (HTTP 500)."""

import copy
import itertools
import json
import re

import anyio
import httpx
from authz_rows import ROUTES
from test_authz_matrix import expected, template, world  # noqa: F401  (fixtures)

from shoal.server.app import PREFIX

EXTREMES = {"integer": (2**63, -1), "number": (1e20, -1, float("nan"), float("inf"))}
BAD_HASHES = ("zz" * 32, "é" * 64, "0" * 63, "")
CALLERS = ("owner", "admin", "agent", "peer", "guest", "joiner", "anonymous")
NAMED = re.compile(r"/workspaces/{workspace}/(jobs|sweeps|swarms|leases|preflights|datasets|checkpoints|imports)$")
"""Routes that make something; each call gets a name of its own, so that no answer is just "that name is taken"."""


def kinds(schema, whole):
    """All forms a value may have, without references and alternatives."""
    if "$ref" in schema:
        return kinds(whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]], whole)
    found = [schema] if "type" in schema else []
    for some in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        found += kinds(some, whole)
    return found


def paths(schema, whole, depth=6):
    """(keys that lead to it, values to try) of each number and hash in a body."""
    for kind in kinds(schema, whole) if depth else ():
        if kind["type"] in EXTREMES:
            yield (), EXTREMES[kind["type"]]
        for name, inner in kind.get("properties", {}).items():
            for path, values in paths(inner, whole, depth - 1):
                yield (name, *path), values
            if name in ("hash", "hashes", "public_key"):
                yield (name,), [[bad] for bad in BAD_HASHES] if name == "hashes" else BAD_HASHES
        if kind["type"] == "array":
            for path, values in paths(kind["items"], whole, depth - 1):
                yield (0, *path), values
        if isinstance(kind.get("additionalProperties"), dict):
            for path, values in paths(kind["additionalProperties"], whole, depth - 1):
                yield ("x", *path), values


def replaced(body, path, value):
    """A copy of the body with this value at that path."""
    if not path:
        return value
    head, *rest = path
    if isinstance(head, int):
        items = list(body) if isinstance(body, list) and body else [None]
        items[0] = replaced(items[0], rest, value)
        return items
    known = body if isinstance(body, dict) else {}
    return {**known, head: replaced(known.get(head), rest, value)}


def cases(route, document):
    """(query, body) of every request worth trying on a route."""
    method, template_ = route.split(" ")
    row = ROUTES[route]
    known = {re.sub(r":path}", "}", path): about for path, about in document["paths"].items()}
    about = known[PREFIX + template_][method.lower()]
    for parameter in about.get("parameters", ()):
        types = {k["type"] for k in kinds(parameter["schema"], document)} & set(EXTREMES)
        for value in itertools.chain.from_iterable(EXTREMES[t] for t in types if parameter["in"] == "query"):
            yield {**row.params, parameter["name"]: str(value)}, row.body
    content = about.get("requestBody", {}).get("content", {}).get("application/json")
    for path, values in dict(paths(content["schema"], document)).items() if content else ():
        for value in values:
            yield row.params, replaced(copy.deepcopy(row.body), path, value)


def test_no_number_or_hash_makes_any_route_fail(world):  # noqa: F811
    world.finish_jobs()
    document, numbers, failures = world.app.openapi(), itertools.count(), []

    async def send(client, route, params, body):
        row, (method, path) = ROUTES[route], route.split(" ")
        caller = next(c for c in CALLERS if expected(c, row) is None)
        ids = world.facts.ids
        url = path.format(**ids | {name: ids[thing] for name, thing in row.use.items()})
        text = re.sub(r"<(\w+)>", lambda m: ids[m[1]], json.dumps(body)) if body is not None else None
        if text and NAMED.search(path):
            text = re.sub(r'^{"name": "[^"]*"', f'{{"name": "n{next(numbers)}"', text)
        content = text.encode() if text is not None else row.content
        headers = world.callers[caller].headers | {"Content-Type": "application/json"}
        try:
            answer = await client.request(method, url, params=params, content=content, headers=headers)
            assert answer.status_code != 500
        except Exception as error:
            failures.append(f"{route} {params} {(text or '')[:300]}: {type(error).__name__}: {error}"[:700])

    async def send_all():
        transport = httpx.ASGITransport(world.app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1{PREFIX}") as client:
            for route in ROUTES:
                for params, body in cases(route, document):
                    await send(client, route, params, body)
                    sent.append(route)

    sent = []
    anyio.run(send_all)
    assert len(set(sent)) > 20
    assert not failures, "\n".join(failures)
