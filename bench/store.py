"""Push and fetch of mixed files, beside `cp` + BLAKE3 and its peers where installed, in the same run on the same disk.

    python bench/store.py [--size-mb 2000] [--rounds 2] [--http] [--dvc PROGRAM] [--aws PROGRAM] [--dir DIR] [--json]

Each thing is done `--rounds` times in turn with the others; the medians of its times and of its ratios to the `cp` and BLAKE3 of its
own round are shown, as ratios count, not seconds (dvc and aws, the slow ones, are run once). `cp` does not wait for the disk, a push does: nothing is acknowledged before it is durable; so `cp` + sync is
shown too. Before each, as much memory is touched as it may need: a virtual machine may have to ask its host for every page that
was free for some seconds, and the first candidate would pay for all. Nothing is deleted before the end, as ext4 makes files slowly
for a minute after many were removed: it takes ten times the size per round.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import store_peers
import store_receive
from blake3 import blake3

from shoal.store.ignore import scan
from shoal.store.known import KnownFiles
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
"""Shares of the speed of cp + BLAKE3, at least."""
LIMITS = {
    "sent again after 1 % changed": (0.02, "of all bytes"),
    "10 checkpoints, 2 % trained": (1.20, "x one"),
    "10 checkpoints, 10 % trained": (2.00, "x one (9 x 10 % cannot be saved)"),
    "server memory growth": (200, "MB"),
    "CPU of receiving with bulk_upload": (0.67, "of uvicorn's own"),
}
"""Other figures, at most."""
CHECKPOINT_TENSORS = 50
AGED_S = 2.1
"""Younger files are read again, as they may have changed once more without a trace."""


class Clock:
    def __init__(self, size: int) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._memory = 2 * size

    def time(self, name: str, work: Callable[[], T], *, quiet: bool = True) -> T:
        if quiet:
            os.sync()
            warm_memory(self._memory)
        start = time.perf_counter()
        result = work()
        self.seconds[name].append(time.perf_counter() - start)
        return result

    def __getitem__(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, base: Sequence[str], name: str) -> float:
        """Return how much faster it is than all of `base` together, round by round, or by medians if it was not run in every round."""
        rounds = [sum(times) for times in zip(*(self.seconds[part] for part in base), strict=True)]
        if len(self.seconds[name]) != len(rounds):
            return statistics.median(rounds) / self[name]
        return statistics.median(whole / own for whole, own in zip(rounds, self.seconds[name], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--http", action="store_true", help="also through a real server on loopback")
    parser.add_argument("--dvc", default=shutil.which("dvc"), help="(default: the one in PATH, if any)")
    parser.add_argument("--aws", default=shutil.which("aws"), help="with a moto_server beside it or in PATH")
    parser.add_argument("--dir", type=Path, default=None, help="where to work (default: the temp directory)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    need_gb = (10 * options.rounds + 6) * options.size_mb / 1000
    free_gb = shutil.disk_usage(options.dir or tempfile.gettempdir()).free / 1e9
    if free_gb < need_gb:
        parser.error(
            f"this takes {need_gb:.0f} GB, and {free_gb:.0f} are free: fewer --rounds, less --size-mb, or --dir"
        )
    work = Path(tempfile.mkdtemp(prefix="shoal-bench-", dir=options.dir))
    try:
        figures = measure(work, options)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(json.dumps(figures, indent=2) if options.json else table(figures))


def measure(work: Path, options: argparse.Namespace) -> dict[str, object]:
    source, size_mb = work / "source", options.size_mb
    make_files(source, size_mb)
    clock = Clock(size_mb * 1_000_000)
    others: dict[str, float] = {}
    for round_ in range(options.rounds):
        place = work / f"round{round_}"
        place.mkdir()
        time.sleep(AGED_S)
        baseline(clock, source, place)
        local(clock, source, place)
        others["sent again after 1 % changed"] = change_one_percent(clock, source, place)
        if shutil.which("rsync"):
            store_peers.rsync(clock, source, place)
        if options.http:
            others["server memory growth"] = through_http(clock, source, place)
            others["CPU of receiving with bulk_upload"] = 1 / store_receive.compare(2)["times_less"]
        told = {name: times[round_] for name, times in clock.seconds.items() if len(times) > round_}
        print(f"round {round_ + 1}:", *(f"{name} {s:.2f}" for name, s in told.items()), sep="  ", file=sys.stderr)
    if options.dvc:
        store_peers.dvc(clock, options.dvc, source, work)
    if options.aws and (moto := shutil.which("moto_server", path=f"{Path(options.aws).parent}:{os.environ['PATH']}")):
        store_peers.aws(clock, options.aws, moto, source)
    for percent in (2, 10):
        others[f"10 checkpoints, {percent} % trained"] = checkpoints(work / f"checkpoints{percent}", percent)
    return summary(clock, size_mb, others)


def baseline(clock: Clock, source: Path, place: Path) -> None:
    clock.time("cp", lambda: subprocess.run(["cp", "-r", source, place / "copy"], check=True))
    clock.time("sync after cp", os.sync, quiet=False)
    clock.time("BLAKE3", lambda: hash_tree(place / "copy"))


def local(clock: Clock, source: Path, place: Path) -> None:
    store, known = LocalStore(place / "store"), KnownFiles(place / "known.db")
    name = clock.time("push", lambda: store.put_manifest(push(entries(source), store, known=known)[0].manifest))
    clock.time("push again, unchanged", lambda: push(entries(source), store, known=known))
    clock.time("fetch", lambda: download(store.get_manifest(name), store, place / "fetched"))
    same(source, place / "fetched")
    known.close()
    store.close()


def change_one_percent(clock: Clock, source: Path, place: Path) -> float:
    """Edit a tree that was pushed in place, and push it again. Returns the share of its bytes that was sent."""
    tree, copies = place / "edited", {"": place / "whole", "--no-whole-file": place / "delta"}
    shutil.copytree(source, tree)
    for copy in copies.values():
        shutil.copytree(tree, copy)
    time.sleep(AGED_S)
    store, known = LocalStore(place / "store"), KnownFiles(place / "known.db")
    push(entries(tree), store, known=known)
    edit(tree)
    _, sent = clock.time("push again, 1 % changed", lambda: push(entries(tree), store, known=known))
    known.close()
    store.close()
    if shutil.which("rsync"):
        store_peers.rsync_changes(clock, tree, copies)
    return sent / sum(Path(e.disk).stat().st_size for e in entries(tree))


def edit(tree: Path) -> None:
    """One per cent of all bytes: ten regions in the large files, and one small file in a hundred."""
    noise = random.Random(time.time_ns())
    large = sorted(tree.glob("large*"))
    size = sum(f.stat().st_size for f in large) // 1000
    for n in range(10):
        with large[n % len(large)].open("r+b") as f:
            f.seek(noise.randrange(f.seek(0, os.SEEK_END) - size))
            f.write(noise.randbytes(size))
    for path in sorted((tree / "small").rglob("*.bin"))[::100]:
        path.write_bytes(noise.randbytes(path.stat().st_size))


def through_http(clock: Clock, source: Path, place: Path) -> float:
    """Returns by how many MB the server has grown."""
    from shoal.client.local import read_record
    from shoal.testing.live import LiveServer

    live = LiveServer(place / "home").start()
    try:
        record = read_record(live.layout)
        server = psutil.Process(record.pid) if record else psutil.Process()
        with live.client() as client:
            client.datasets.list()
            before = server.memory_info().rss
            clock.time("http push", lambda: client.datasets.push("bench", entries(source)))
            clock.time("http fetch", lambda: client.datasets.fetch("bench", place / "http", nearby=False))
            grown = server.memory_info().rss - before
    finally:
        live.stop()
    same(source, place / "http")
    return grown / 1e6


def checkpoints(place: Path, percent: int) -> float:
    """Ten of one model of which only the last tensors are trained. Returns what they take in the store, in single ones."""
    noise = random.Random(percent)
    tensor, trained = 1_000_000, CHECKPOINT_TENSORS * percent // 100
    names = {f"t{n}": [n * tensor, (n + 1) * tensor] for n in range(CHECKPOINT_TENSORS)}
    head = json.dumps({k: {"dtype": "U8", "shape": [tensor], "data_offsets": v} for k, v in names.items()}).encode()
    frozen = noise.randbytes(tensor * (CHECKPOINT_TENSORS - trained))
    store = LocalStore(place / "store")
    file = place / "model.safetensors"
    for _ in range(10):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(len(head).to_bytes(8, "little") + head + frozen + noise.randbytes(tensor * trained))
        store.put_manifest(push([Entry(file.name, file)], store)[0].manifest)
    taken = sum(chunk.size for chunk in store.list())
    store.close()
    return taken / file.stat().st_size


def warm_memory(size: int) -> None:
    """Use that much for a moment, so that what is measured next finds pages that the host has given us."""
    available = int(
        next(x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable")).split()[1]
    )
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    mmap.mmap(-1, min(size, available * 1024 // 3), flags=flags).close()


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
    return [Entry(f.path, f"{root}/{f.path}", f.executable, f.stamp) for f in scan(root, ignore=False).files]


def hash_tree(root: Path) -> None:
    for entry in entries(root):
        digest = blake3()
        with open(entry.disk, "rb", buffering=0) as f:  # noqa: PTH123  no Path objects, as in a push
            while block := f.read(1 << 20):
                digest.update(block)
        digest.hexdigest()


def same(one: Path, other: Path) -> None:
    if manifest_id(pack_tree(one, ignore=False).manifest) != manifest_id(pack_tree(other, ignore=False).manifest):
        sys.exit(f"{other} came back different")


def summary(clock: Clock, size_mb: int, others: dict[str, float]) -> dict[str, object]:
    rows = {
        name: {
            "seconds": round(clock[name], 3),
            "gb_per_s": round(size_mb / 1000 / clock[name], 2),
            "of_cp_and_blake3": round(clock.ratio(["cp", "BLAKE3"], name), 2),
            "of_cp_sync_and_blake3": round(clock.ratio(["cp", "sync after cp", "BLAKE3"], name), 2),
        }
        for name in clock.seconds
    }
    return {"size_mb": size_mb, "rows": rows, "others": {name: round(value, 4) for name, value in others.items()}}


def table(figures: dict[str, object]) -> str:
    rows: dict[str, dict[str, float]] = figures["rows"]  # type: ignore[assignment]
    lines = [
        f"{figures['size_mb']} MB of mixed files",
        f"{'':34}{'s':>8}{'GB/s':>8}{'of cp+B3':>10}{'of cp+sync+B3':>15}",
    ]
    for name, row in rows.items():
        target = f"   target {TARGETS[name]:.2f}" if name in TARGETS else ""
        lines.append(
            f"{name:34}{row['seconds']:8.2f}{row['gb_per_s']:8.2f}{row['of_cp_and_blake3']:10.2f}"
            f"{row['of_cp_sync_and_blake3']:15.2f}{target}"
        )
    others: dict[str, float] = figures["others"]  # type: ignore[assignment]
    for name, value in others.items():
        most, unit = LIMITS[name]
        lines.append(f"{name:34}{value:10.4g} {unit}   target at most {most:g}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
