"""Push and fetch of mixed files, beside `cp` + BLAKE3 (and rsync, where installed), in the same run on the same disk.

    python bench/store.py [--size-mb 2000] [--rounds 2] [--http] [--dir DIR] [--json]

Each thing is done `--rounds` times in turn with the others and its median is shown, as ratios count, not seconds. `cp` does not
wait for the disk, a push does: nothing is acknowledged before it is durable; so `cp` + sync is shown too. Nothing is deleted
before the end, as ext4 makes files slowly for a minute after many were removed: have seven times the size per round free.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from shoal.store.ignore import scan
from shoal.store.local import LocalStore
from shoal.store.manifest import manifest_id
from shoal.store.pack import Entry, pack_tree
from shoal.store.transfer import download, push

T = TypeVar("T")

SMALL_FILES = 5_000
TEXT_SHARE = 0.1
TARGETS = {
    "push": 0.80,
    "fetch": 0.80,
    "http push": 0.40,
    "http fetch": 0.40,
}


class Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def time(self, name: str, work: Callable[[], T], *, quiet_disk: bool = True) -> T:
        if quiet_disk:
            os.sync()
        start = time.perf_counter()
        result = work()
        self.seconds[name].append(time.perf_counter() - start)
        return result

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.seconds[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--http", action="store_true", help="also through a real server on loopback")
    parser.add_argument("--dir", type=Path, default=None, help="where to work (default: the temp directory)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="shoal-bench-", dir=options.dir))
    try:
        figures = measure(work, options.size_mb, options.rounds, http=options.http)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(figures, indent=2) if options.json else table(figures))


def measure(work: Path, size_mb: int, rounds: int, *, http: bool) -> dict[str, object]:
    source = work / "source"
    make_files(source, size_mb)
    clock = Clock()
    changed: dict[str, int] = {}
    for round_ in range(rounds):
        place = work / f"round{round_}"
        place.mkdir()
        warm_memory(8 * size_mb * 1_000_000)
        baseline(clock, source, place)
        local(clock, source, place)
        changed = change_one_percent(clock, source, place, changed)
        if shutil.which("rsync"):
            rsync(clock, source, place)
        if http:
            through_http(clock, source, place)
    return summary(clock, size_mb, changed)


def baseline(clock: Clock, source: Path, place: Path) -> None:
    clock.time("cp", lambda: subprocess.run(["cp", "-r", source, place / "copy"], check=True))
    clock.time("sync after cp", os.sync, quiet_disk=False)
    clock.time("BLAKE3", lambda: hash_tree(place / "copy"))


def local(clock: Clock, source: Path, place: Path) -> None:
    store = LocalStore(place / "store")
    name = clock.time("push", lambda: store.put_manifest(push(entries(source), store)[0].manifest))
    clock.time("push again, unchanged", lambda: push(entries(source), store))
    clock.time("fetch", lambda: download(store.get_manifest(name), store, place / "fetched"))
    same(source, place / "fetched")
    store.close()


def change_one_percent(clock: Clock, source: Path, place: Path, changed: dict[str, int]) -> dict[str, int]:
    """One per cent of all bytes: ten regions in the large files, and one small file in a hundred."""
    copy = place / "edited"
    shutil.copytree(source, copy)
    noise = random.Random(time.time_ns())
    large = sorted(copy.glob("large*"))
    size = sum(f.stat().st_size for f in large) // 1000
    for n in range(10):
        with large[n % len(large)].open("r+b") as f:
            f.seek(noise.randrange(f.seek(0, os.SEEK_END) - size))
            f.write(noise.randbytes(size))
    for path in sorted((copy / "small").rglob("*.bin"))[::100]:
        path.write_bytes(noise.randbytes(path.stat().st_size))
    store = LocalStore(place / "store")
    _, sent = clock.time("push again, 1 % changed", lambda: push(entries(copy), store))
    store.close()
    return {"sent": sent, "of": sum(e.disk.stat().st_size for e in entries(source))}


def rsync(clock: Clock, source: Path, place: Path) -> None:
    command = ["rsync", "-a", "--checksum", f"{source}/", f"{place / 'rsync'}/"]
    clock.time("rsync", lambda: subprocess.run(command, check=True))
    clock.time("rsync again", lambda: subprocess.run(command, check=True))


def through_http(clock: Clock, source: Path, place: Path) -> None:
    from shoal.testing.live import LiveServer

    live = LiveServer(place / "home").start()
    try:
        with live.client() as client:
            clock.time("http push", lambda: client.datasets.push("bench", entries(source)))
            clock.time("http fetch", lambda: client.datasets.fetch("bench", place / "http", nearby=False))
    finally:
        live.stop()
    same(source, place / "http")


def warm_memory(size: int) -> None:
    """Use as much as the round will, once: a virtual machine's first touch of a page costs more than all that is measured."""
    available = int(
        next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable")).split()[1]
    )
    with mmap.mmap(-1, min(size, available * 1024 // 2)) as memory:
        for at in range(0, len(memory), 4096):
            memory[at] = 1


def make_files(root: Path, size_mb: int) -> None:
    """A few large files (a tenth of all bytes text, the rest like weights or images) and 5,000 small ones per 2 GB."""
    noise = random.Random(0)
    count = max(50, SMALL_FILES * size_mb // 2000)
    for n in range(count):
        path = root / "small" / f"{n % 50:02d}" / f"{n}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise.randbytes(noise.randint(1_000, 39_000)))
    left = size_mb * 1_000_000 - count * 20_000
    text = int(size_mb * 1_000_000 * TEXT_SHARE)
    for n in range(4):
        with (root / f"large{n}.bin").open("wb") as f:
            for at in range(0, (left - text) // 4, 1_000_000):
                f.write(noise.randbytes(min(1_000_000, (left - text) // 4 - at)))
    words = ["".join(noise.choices("etaoinshrdlu", k=noise.randint(2, 9))) for _ in range(3_000)]
    with (root / "text.jsonl").open("w") as f:
        while f.tell() < text:
            f.writelines(json.dumps({"text": " ".join(noise.choices(words, k=60))}) + "\n" for _ in range(500))


def entries(root: Path) -> list[Entry]:
    return [Entry(f.path, root / f.path, f.executable) for f in scan(root, ignore=False).files]


def hash_tree(root: Path) -> None:
    for entry in entries(root):
        digest = blake3()
        with entry.disk.open("rb", buffering=0) as f:
            while block := f.read(1 << 20):
                digest.update(block)
        digest.hexdigest()


def same(one: Path, other: Path) -> None:
    if manifest_id(pack_tree(one, ignore=False).manifest) != manifest_id(pack_tree(other, ignore=False).manifest):
        sys.exit(f"{other} came back different")


def summary(clock: Clock, size_mb: int, changed: dict[str, int]) -> dict[str, object]:
    base = clock["cp"] + clock["BLAKE3"]
    synced = base + clock["sync after cp"]
    rows = {
        name: {
            "seconds": round(clock[name], 3),
            "gb_per_s": round(size_mb / 1000 / clock[name], 2),
            "of_cp_and_blake3": round(base / clock[name], 2),
            "of_cp_sync_and_blake3": round(synced / clock[name], 2),
        }
        for name in clock.seconds
    }
    share = changed["sent"] / changed["of"]
    return {"size_mb": size_mb, "rows": rows, "resent_share_after_1_percent": round(share, 4)}


def table(figures: dict[str, object]) -> str:
    rows: dict[str, dict[str, float]] = figures["rows"]  # type: ignore[assignment]
    lines = [
        f"{figures['size_mb']} MB of mixed files",
        f"{'':26}{'s':>8}{'GB/s':>8}{'of cp+B3':>10}{'of cp+sync+B3':>15}",
    ]
    for name, row in rows.items():
        target = f"   target {TARGETS[name]:.2f}" if name in TARGETS else ""
        lines.append(
            f"{name:26}{row['seconds']:8.2f}{row['gb_per_s']:8.2f}{row['of_cp_and_blake3']:10.2f}"
            f"{row['of_cp_sync_and_blake3']:15.2f}{target}"
        )
    lines.append(
        f"after 1 % changed, sent again: {100 * float(str(figures['resent_share_after_1_percent'])):.2f} %   target 2 %"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
