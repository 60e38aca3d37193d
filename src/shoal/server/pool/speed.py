"""Network speed between the pool's machines, and which of them slows the others down."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.pool import PairSpeed, PoolAdd, PoolCheck, PoolMachine
from shoal.server.context import Context
from shoal.server.models.pool import PoolRow
from shoal.server.pool.add import ssh_of

_ALL_PAIRS = 6
"""Most machines for which every pair is measured; with more, each machine and the next one, in a ring."""
_MB = 8
_PORTS = (20_000, 32_700)
_TIMEOUT_S = 180.0
SLOW, LATE = 0.5, 3.0
"""A pair counts as slow below this share of the best pair's speed, or above this multiple of its latency."""


def measure(ctx: Context, rows: list[PoolRow], machines: list[PoolMachine]) -> PoolCheck:
    up = {machine.id for machine in machines if machine.state in ("up", "draining")}
    there = [row for row in rows if row.id in up and row.via == "ssh"]
    if len(there) < 2:
        return PoolCheck(machines=machines, skipped="it needs two machines that are up and reachable by SSH")
    try:
        pairs = _all_reduce(ctx, there)
    except ShoalError as error:
        return PoolCheck(machines=machines, skipped=error.message)
    return PoolCheck(machines=machines, pairs=pairs, slow=what_stands_out(pairs))


def choose_pairs(count: int) -> list[tuple[int, int]]:
    if count <= _ALL_PAIRS:
        return list(combinations(range(count), 2))
    return [(i, (i + 1) % count) for i in range(count)]


def what_stands_out(pairs: list[PairSpeed]) -> list[str]:
    """Describe what is slow: a machine all of whose pairs are slow, else the single pairs."""
    if len(pairs) < 2:
        return []
    speed, latency = max(p.mb_s for p in pairs), min(p.latency_ms for p in pairs)
    bad = [p for p in pairs if p.mb_s < SLOW * speed or p.latency_ms > LATE * latency]
    names = {name for p in pairs for name in (p.one, p.other)}
    # All of its pairs are slow, and those without it are not.
    culprits = [name for name in sorted(names) if bad and all((name in (p.one, p.other)) == (p in bad) for p in pairs)]
    if culprits:
        worst = min(p.mb_s for p in bad)
        late = max(p.latency_ms for p in bad)
        return [
            f"{name} is slow to all others: {worst:.0f} MB/s at worst (best {speed:.0f}), {late:.1f} ms (best {latency:.1f})"
            for name in culprits
        ]
    return [
        f"{p.one} – {p.other}: {p.mb_s:.0f} MB/s (best {speed:.0f}), {p.latency_ms:.1f} ms (best {latency:.1f})"
        for p in bad
    ]


def _all_reduce(ctx: Context, rows: list[PoolRow]) -> list[PairSpeed]:
    task: dict[str, Any] = {
        "do": "speed",
        "world": len(rows),
        "master": rows[0].address,
        "port": random.randrange(*_PORTS),  # noqa: S311
        "pairs": choose_pairs(len(rows)),
        "mb": _MB,
    }

    def run(rank: int) -> Any:
        ssh = ssh_of(ctx, PoolAdd.model_validate(rows[rank].asked))
        return ssh.do(task | {"rank": rank}, python=rows[rank].python, timeout_s=_TIMEOUT_S)["pairs"]

    with ThreadPoolExecutor(len(rows)) as workers:
        found = [pair for pairs in workers.map(run, range(len(rows))) for pair in pairs]
    names = [row.name for row in rows]
    return [PairSpeed(one=names[a], other=names[b], latency_ms=ms, mb_s=speed) for a, b, ms, speed in found]
