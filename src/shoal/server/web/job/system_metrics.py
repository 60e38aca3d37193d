"""System metrics of each node of a job (CPU, memory, GPU, disk), reduced to what a chart can show."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import zstandard
from sqlalchemy import select

from shoal.core.schema import View
from shoal.server import lookup
from shoal.server.context import Context
from shoal.server.db import in_parts
from shoal.server.models.jobs import Segment
from shoal.server.policy import Access
from shoal.server.web.job.logs import plain

POINTS = 600
_MOST_SEGMENTS = 2 * POINTS
GPU_KEYS = ("util", "mem", "mem_total", "watts", "watts_max", "celsius", "mhz", "mhz_max", "ecc", "throttled", "nvlinks",
            "nvlink_errors")  # fmt: skip
_PLAIN_KEYS = ("cpu", "rss", "ram", "ram_total", "load", "disk_free", "cores", "procs")


class NodeSamples(View):
    node: int
    at: list[float]
    """Times in Unix seconds."""
    series: dict[str, list[float | None]]
    """Name → values: cpu (% of one core), rss, ram, ram_total, disk_free (bytes), load, gpu0_util (%), gpu0_mem (bytes) …"""


class Environment(View):
    """Python and packages with which a job runs."""

    python: str
    packages: dict[str, str]
    attempt: int


def samples(ctx: Context, access: Access, job: str) -> list[NodeSamples]:
    with ctx.db.read() as session:
        job_id = lookup.job(session, access, job).id
        known = session.execute(
            select(Segment.node, Segment.id)
            .where(Segment.job_id == job_id, Segment.stream == "system")
            .order_by(Segment.id)
        ).all()
        rows: list[Any] = []
        for chosen in in_parts(_chosen(known)):
            rows += session.execute(select(Segment.node, Segment.body).where(Segment.id.in_(chosen))).all()
    nodes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    unpack = zstandard.ZstdDecompressor()
    for row in rows:
        nodes[row.node] += [record for record in _records(row.body, unpack) if "env" not in record]
    return [_thin(node, sorted(found, key=lambda r: r["t"])) for node, found in sorted(nodes.items()) if found]


def environment(ctx: Context, access: Access, job: str) -> Environment | None:
    """Return the environment on the first node of the newest attempt; None for a job that has not run here."""
    with ctx.db.read() as session:
        job_id = lookup.job(session, access, job).id
        row = session.execute(
            select(Segment.attempt, Segment.body)
            .where(Segment.job_id == job_id, Segment.stream == "system", Segment.node == 0, Segment.seq_first == 0)
            .order_by(Segment.id.desc())
            .limit(1)
        ).one_or_none()
    told = next((r["env"] for r in _records(row.body) if isinstance(r.get("env"), dict)), None) if row else None
    if row is None or told is None:
        return None
    packages = told.get("packages") or {}
    return Environment(
        python=str(told.get("python", "")),
        packages={str(k): str(v) for k, v in packages.items()} if isinstance(packages, dict) else {},
        attempt=row.attempt,
    )


def _chosen(known: Sequence[Any]) -> list[int]:
    """Return the segments to read: for each node an even selection that suffices for a chart. A day gives thousands."""
    nodes: dict[int, list[int]] = defaultdict(list)
    for row in known:
        nodes[row.node].append(row.id)
    chosen: list[int] = []
    for segments in nodes.values():
        stride = max(1, len(segments) // _MOST_SEGMENTS)
        chosen += segments[::-1][::stride]
    return chosen


def _records(body: bytes, unpack: zstandard.ZstdDecompressor | None = None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in plain(body, unpack).splitlines() if line]


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
        part = gpu.get("part")
        name = f"gpu{int(gpu.get('i') or 0)}" + (f"s{int(part)}" if part is not None else "")
        found |= {f"{name}_{key}": float(gpu[key]) for key in GPU_KEYS if isinstance(gpu.get(key), int | float)}
    return found


def _mean(bucket: list[dict[str, float]], name: str) -> float | None:
    values = [record[name] for record in bucket if name in record]
    return round(sum(values) / len(values), 3) if values else None
