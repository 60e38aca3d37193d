"""Runs the nemesis: `python -m shoal.testing.nemesis.run SEED --minutes N`."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from shoal.core.errors import ShoalError
from shoal.testing.nemesis.checker import Finding, check
from shoal.testing.nemesis.faults import KINDS, Scene, available, wait_well
from shoal.testing.nemesis.history import History
from shoal.testing.nemesis.observe import observe, observe_files, wait_until_ended
from shoal.testing.nemesis.workload import Workload
from shoal.testing.nemesis.world import World, scratch
from shoal.testing.patience import VARIABLE, measure, patient

RESULTS = Path(".soak")
_WELL_S = 90.0
_SETTLE_S = 120.0


def nemesis(
    seed: int,
    *,
    folder: Path,
    seconds: float = math.inf,
    most: float = math.inf,
    faults: Sequence[str] = (),
    every_s: tuple[float, float] = (20.0, 60.0),
    scale: float = 1.0,
    hold_s: float | None = None,
    pace: float = 1.0,
    small_disk: bool = True,
    say: Any = lambda text: None,
) -> tuple[dict[str, Any], list[Finding]]:
    """Run one server under load, for some time or until there were `most` faults.

    Return the history with what was found at the end, and the findings. Each fault comes once before any comes again.
    The order of the faults and of each client's operations follows from the seed; their exact moments do not.
    """
    history, rng = History(seed), random.Random(seed)
    world = World(folder, small_disk=small_disk)
    try:
        world.start()
        workload = Workload(world, history, seed, pace=pace)
        workload.start()
        scene = Scene(world, workload, history, rng, scale, hold_s)
        sampler = threading.Thread(target=_sample, args=(world, history), name="nemesis-sampler", daemon=True)
        sampler.start()
        try:
            _torment(scene, list(faults) or available(small_disk=small_disk), seconds, most, every_s, say)
        finally:
            world.shim.heal()
            workload.stop()
        say("waiting for the jobs to end")
        took, stuck = wait_until_ended(world, _SETTLE_S)
        found = observe(world) | {"stuck": stuck, "settle_s": round(took, 1), "last_server": _figures(world)}
        world.is_closing.set()
        sampler.join()
        world.stop()
        found |= observe_files(world)
        world.start()
        wait_well(world, patient(30))
        found["new_server"] = _figures(world)
    finally:
        world.is_closing.set()
        whole = history.as_json()
        with suppress(OSError):
            shutil.copy(world.layout.server_log, folder / "server.log")
        world.remove()
    findings = check(whole, found)
    return whole | {"found": found, "findings": [asdict(one) for one in findings]}, findings


def _torment(
    scene: Scene, faults: list[str], seconds: float, most: float, every_s: tuple[float, float], say: Any
) -> None:
    history, rng = scene.history, scene.rng
    bag: list[str] = []
    while history.now() < seconds and len(history.faults) < most:
        if scene.world.is_closing.wait(rng.uniform(*every_s)):
            return
        if not bag:
            bag = rng.sample(faults, len(faults))
        kind = KINDS[bag.pop()]
        fault = history.fault(kind.id, kind.what)
        say(f"{fault.began:6.1f} s  {kind.id}: {kind.what}")
        try:
            fault.detail |= kind.inject(scene)
        except ShoalError as error:
            fault.detail["error"] = error.message
        fault.ended = history.now()
        fault.recovered_s = wait_well(scene.world, patient(_WELL_S))
        if fault.recovered_s is not None:
            fault.recovered_s = round(fault.recovered_s, 2)
        say(f"{history.now():6.1f} s  {kind.id}: well after {fault.recovered_s} s {fault.detail}")


def _sample(world: World, history: History) -> None:
    while not world.is_closing.wait(5):
        if figures := _figures(world):
            history.samples.append({"at": round(history.now(), 1), **figures})


def _figures(world: World) -> dict[str, Any]:
    record = world.record()
    if record is None:
        return {}
    try:
        process = psutil.Process(record.pid)
        return {
            "pid": record.pid,
            "rss": process.memory_info().rss,
            "files": process.num_fds(),
            "threads": process.num_threads(),
        }
    except psutil.Error:
        return {}


def main(words: Sequence[str] | None = None) -> int:
    """Run it from the command line; the exit code is 1 if anything was found."""
    options = parse(words)
    os.environ.setdefault(VARIABLE, f"{measure():.2f}")
    folder = scratch()
    saved = options.results / f"nemesis-{options.seed}.json"
    whole, findings = nemesis(
        options.seed,
        seconds=options.minutes * 60,
        folder=folder,
        faults=options.faults.split(",") if options.faults else (),
        every_s=tuple(float(part) for part in options.every.split("-")),  # type: ignore[arg-type]
        hold_s=options.hold,
        say=lambda text: print(text, flush=True),
    )
    saved.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text(json.dumps(whole))
    operations = whole["operations"]
    acknowledged = sum(op["result"] == "ok" for op in operations)
    print(
        f"seed {options.seed}: {len(whole['faults'])} faults, {len(operations)} operations ({acknowledged} acknowledged), "
        f"{len(whole['found']['jobs'])} jobs, {len(findings)} findings; history: {saved}"
    )
    for finding in findings:
        print(f"  {finding}")
    if findings:
        print(f"the server's log: {folder}/server.log")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/soak --nemesis", description="A real server under random faults.")
    parser.add_argument("seed", type=int, help="seed of the faults and operations")
    parser.add_argument("--minutes", type=float, default=10.0, help="time during which faults happen (default: 10)")
    parser.add_argument(
        "--faults", default="", help=f"comma-separated, of {','.join(KINDS)} (default: all that work here)"
    )
    parser.add_argument("--every", default="20-60", help="pause between two faults in seconds (default: 20-60)")
    parser.add_argument(
        "--hold", type=float, help="seconds that a sick disk, a lock or an absence lasts (default: random)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the histories (default: .soak)")
    options = parser.parse_args(words)
    unknown = [name for name in options.faults.split(",") if name and name not in KINDS]
    if unknown:
        parser.error(f"unknown fault {unknown[0]}; there are {', '.join(KINDS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
