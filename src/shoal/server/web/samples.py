"""How each node used its machine, thinned out to what a chart can show."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import zstandard
from sqlalchemy import select

from shoal.core.schema import View
from shoal.server.context import Context
from shoal.server.models.jobs import Segment
from shoal.server.policy import Access
from shoal.server.services import find

POINTS = 600
_MAX_PLAIN = 16 << 20
_PLAIN_KEYS = ("cpu", "rss", "ram", "ram_total", "load", "disk_free", "cores", "procs")


class NodeSamples(View):
    node: int
    at: list[float]
    """Unix seconds."""
    series: dict[str, list[float | None]]
    """By name: cpu (% of one core), rss, ram, ram_total, disk_free (bytes), load, gpu0_util (%), gpu0_mem (bytes) …"""


def samples(ctx: Context, access: Access, job: str) -> list[NodeSamples]:
    with ctx.db.read() as session:
        job_id = find.job(session, access, job).id
        rows = session.execute(
            select(Segment.node, Segment.body)
            .where(Segment.job_id == job_id, Segment.stream == "system")
            .order_by(Segment.id)
        ).all()
    nodes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for node, body in rows:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            nodes[node] += [json.loads(line) for line in reader.read(_MAX_PLAIN).splitlines() if line]
    return [_thin(node, sorted(found, key=lambda r: r["t"])) for node, found in sorted(nodes.items())]


def _thin(node: int, records: list[dict[str, Any]]) -> NodeSamples:
    flat = [_flat(record) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record if name != "t"))
    size = max(1, -(-len(flat) // POINTS))
    buckets = [flat[start : start + size] for start in range(0, len(flat), size)]
    return NodeSamples(
        node=node,
        at=[bucket[-1]["t"] for bucket in buckets],
        series={name: [_mean(bucket, name) for bucket in buckets] for name in names},
    )


def _flat(record: dict[str, Any]) -> dict[str, float]:
    found = {"t": float(record["t"])}
    found |= {key: float(record[key]) for key in _PLAIN_KEYS if isinstance(record.get(key), int | float)}
    for gpu in record.get("gpu") or []:
        index = int(gpu.get("i") or 0)
        found |= {
            f"gpu{index}_{key}": float(gpu[key])
            for key in ("util", "mem", "mem_total", "watts", "celsius")
            if isinstance(gpu.get(key), int | float)
        }
    return found


def _mean(bucket: list[dict[str, float]], name: str) -> float | None:
    values = [record[name] for record in bucket if name in record]
    return round(sum(values) / len(values), 3) if values else None
