"""Every number and text a route takes, at its worst: nothing a caller sends is a bug of the server's (HTTP 5xx)."""

import copy
import itertools
import json
import re
from collections import Counter

import anyio
import httpx
import pytest
import zstandard
from authz_rows import ROUTES
from test_authz_matrix import expected, template, world  # noqa: F401  (fixtures)

from shoal.core.records import Record
from shoal.server.app import PREFIX

LONG = "x" * 10_000
EXTREMES = {
    "integer": (2**63, -(2**63) - 1, -1),
    "number": (1e20, 1e308, -1, float("nan")),
    "string": ("\ud800", "a\0b", LONG, ""),
}
IN_URLS = {"\ud800": "%ED%A0%80", "a\0b": "a%00b"}
"""Texts as they stand in a URL; a lone surrogate is no valid UTF-8."""
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
    """(keys that lead to it, values to try) of each number, text and hash in a body."""
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


def cases(route, document, known_bodies):
    """(query, parts of the path, body) of every request worth trying on a route.

    Several routes take a job's specification: the later ones get its numbers and the first text only.
    """
    method, template_ = route.split(" ")
    row = ROUTES[route]
    known = {re.sub(r":path}", "}", path): about for path, about in document["paths"].items()}
    about = known[PREFIX + template_][method.lower()]
    for parameter in about.get("parameters", ()):
        types = {k["type"] for k in kinds(parameter["schema"], document)} & set(EXTREMES)
        for value in itertools.chain.from_iterable(EXTREMES[t] for t in types):
            text = IN_URLS.get(value, str(value))
            if parameter["in"] == "query":
                yield {**row.params, parameter["name"]: text}, {}, row.body
            elif parameter["in"] == "path" and text:
                yield row.params, {parameter["name"]: text}, row.body
    content = about.get("requestBody", {}).get("content", {}).get("application/json")
    schema = content["schema"] if content else None
    for path, values in dict(paths(schema, document)).items() if schema else ():
        for value in values[:1] if schema in known_bodies and values is EXTREMES["string"] else values:
            yield row.params, {}, replaced(copy.deepcopy(row.body), path, value)
    known_bodies.append(schema)


def test_no_number_text_or_hash_makes_any_route_fail(world):  # noqa: F811
    world.finish_jobs()
    document, numbers, failures, sent = world.app.openapi(), itertools.count(), [], Counter()

    async def send(client, route, params, parts, body):
        row, (method, path) = ROUTES[route], route.split(" ")
        caller = next(c for c in CALLERS if expected(c, row) is None)
        ids = world.facts.ids
        url = path.format(**ids | {name: ids[thing] for name, thing in row.use.items()} | parts)
        query = "&".join(f"{name}={value}" for name, value in params.items())
        text = re.sub(r"<(\w+)>", lambda m: ids[m[1]], json.dumps(body)) if body is not None else None
        if text and NAMED.search(path):
            text = re.sub(r'^{"name": "[^"]*"', f'{{"name": "n{next(numbers)}"', text)
        content = text.encode() if text is not None else row.content
        headers = world.callers[caller].headers | {"Content-Type": "application/json"}
        address = client.base_url.copy_with(raw_path=f"{PREFIX}{url}?{query}".encode())  # as it is: not encoded again
        try:
            answer = await client.request(method, address, content=content, headers=headers)
            sent[answer.status_code] += 1
            assert answer.status_code < 500, answer.text
        except Exception as error:
            what = f"{query[:80]} {str(parts)[:80]} {(text or '')[:300]}"
            failures.append(f"{route} {what}: {type(error).__name__}: {error}"[:700])

    async def send_all():
        transport = httpx.ASGITransport(world.app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            known_bodies = []
            for route in ROUTES:
                for params, parts, body in cases(route, document, known_bodies):
                    await send(client, route, params, parts, body)

    anyio.run(send_all)
    assert not failures, "\n".join(failures)
    assert sent[200] > 100 and sent[422] > 1000, sent  # most got as far as the routes
    assert world.callers["owner"].get("/auth/me").status_code == 200


RECORDS = [
    {"t": value, "m": "x", "r": 0}
    for value in (2**63, 10**400, 1e308, -1e308, float("nan"), float("inf"), True, "", None)
] + [
    {"t": 1.0, "m": "\ud800", "r": 0},
    {"t": 1.0, "m": "a\0b", "r": 0},
    {"t": 1.0, "m": {"x": [1]}, "r": 0},
    {"t": 1.0, "m": "x", "r": 2**63},
    {"t": 1.0, "m": "x", "r": "a"},
    {"t": 1.0, "m": "x", "r": [1]},
    {"t": 1.0, "m": "x", "r": 0, "e": 5},
    {"t": 1.0, "m": "x", "r": 0, "e": "\ud800"},
    *({"t": 1.0, "k": "s", "i": step, "v": {"loss": 1.0}} for step in (2**63, -1, 1e308, "a", "\ud800", None)),
    *({"t": 1.0, "k": "s", "i": 1, "v": {name: 1.0}} for name in ("", LONG, "\ud800", "a\0b")),
    *({"t": 1.0, "k": "s", "i": 2, "v": {"m": value}} for value in (10**400, 1e308, float("nan"), "\ud800", LONG, [1])),
    *(
        {**cls(**dict.fromkeys(cls.names(), value)).encode(), "t": 1.0, "k": cls.kind.value}
        for cls in Record.__subclasses__()
        for value in ("\ud800", {"\ud800": 1}, 2**63, 1e308, None, [1], 5, "")
    ),
    {"t": 1.0, "k": "\ud800"},
    {"t": 1.0, "k": "s", "i": 1, "v": 5},
]
READERS = (
    "logs",
    "follow",
    "metrics?name=loss",
    "metric-names",
    "ledger",
    "config",
    "share",
    "media",
    "diff/{imported}",
    "",
)


def test_no_record_of_an_agent_or_an_import_makes_it_or_a_later_read_fail(world):  # noqa: F811
    """A stored record that no answer can contain would make a job unreadable, because records are read again and again."""
    ids, failures, taken = world.facts.ids, [], Counter()
    place = f"/workspaces/{ids['workspace']}/jobs"

    def request(caller, what, *args, **options):
        try:
            answer = world.callers[caller].request(*args, **options)
            text, status = answer.text, answer.status_code
        except Exception as error:
            text, status = f"{type(error).__name__}: {error}", 500
        if status >= 500:
            failures.append(f"{str(what)[:150]} {args}: {text}"[:500])
        return status

    for number, record in enumerate(RECORDS):
        body = zstandard.compress(json.dumps(record).encode())
        for stream in ("metric",) if "k" in record else ("log", "system"):
            params = {"seq_first": taken[stream], "count": 1}
            status = request("agent", record, "POST", f"/agent/segments/{stream}", params=params, content=body)
            taken[stream] += status == 200
            if stream != "system":
                params = {"seq_first": 0, "count": 1, "part": str(number)}
                url = f"{place}/{ids['imported']}/import/segments/{stream}"
                request("owner", record, "POST", url, params=params, content=body)
    assert min(taken.values()) > 5, taken
    world.finish_jobs()
    for job, reader in itertools.product((ids["job"], ids["imported"]), READERS):
        request("owner", "then", "GET", f"{place}/{job}/{reader.format(**ids)}".rstrip("/"))
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(
    "query",
    [
        "q=lr=" + ",".join("1" for _ in range(900)),
        "q="
        + " ".join(f"m{n}.min>1" for n in range(50))
        + "".join(f"&column=n{n}.min" for n in range(20))
        + "&sort=z.max&group=a.min&column=b.min&column=c.min",
        "&".join(f"column=m{n}.min" for n in range(50)) + "".join(f"&group=n{n}.min" for n in range(50)),
        'q="a\\\\"=1',
    ],
    ids=["many values", "many metrics", "many groups", "backslash"],
)
def test_a_query_of_runs_that_asks_for_too_much_is_refused(world, query):  # noqa: F811
    answer = world.callers["owner"].get(f"/workspaces/{world.facts.ids['workspace']}/runs/query?{query}")
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "about",
    [{"device": "cpu", "gpu_memory_gb": 5e-324}, {"device": "cpu", "gpu": "H100"}, {"prefer": ["m"], "exclude": ["m"]}],
)
def test_wishes_that_contradict_each_other_are_refused_wherever_they_are_given(world, about):  # noqa: F811
    owner, workspace = world.callers["owner"], world.facts.ids["workspace"]
    spec = {"entry": ["train.py"], **about}
    wishes = {
        "queue/simulate": about,
        "leases": {key: about[key] for key in about if key != "exclude"},
        "quotes": {key: spec[key] for key in spec if key not in ("exclude", "prefer")},
    }
    answers = {path: owner.post(f"/workspaces/{workspace}/{path}", json=body) for path, body in wishes.items()}
    contradicting = wishes if "device" in about else {"queue/simulate"}
    assert {path for path, answer in answers.items() if answer.status_code == 422} >= set(contradicting)
    assert not {path: a.text for path, a in answers.items() if a.status_code >= 500}
