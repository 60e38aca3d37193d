"""Small trials of one worker: started in a preloaded interpreter (warm) against a new one each (cold), in the same run.

    python bench/warm.py [--trials 10] [--slots 2] [--json]

Two servers, one of them with `warm = false`, take turns. Latency: one trial at a time, from submitting to the script's first
statement, to torch being there, and to the job's end. Throughput: all trials submitted at once. Memory: what the prefork parent holds
by itself while nothing runs, and shared with other processes that have the same files open.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from shoal.client import Client
from shoal.core.jobs import JobSpec
from shoal.store.pack import pack_tree
from shoal.testing.live import LiveServer, live_server
from shoal.testing.processes import command

LOOK_EVERY_S = 0.01
STEPS = ("first statement", "torch is there", "job has ended")
SCRIPT = """import time; first = time.time()
import torch
ready = time.time()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    loss = model(torch.ones(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("TIMES", first, ready, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        result = measure(Path(root), args.trials, args.slots)
    print(json.dumps(result, indent=1) if args.json else report(result))


def measure(root: Path, trials: int, slots: int) -> dict[str, Any]:
    (root / "code").mkdir()
    (root / "code/train.py").write_text(SCRIPT)
    settings = root / "cold/server/settings.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("warm = false\n")
    with live_server(root / "cold", slots=slots) as cold, live_server(root / "warm", slots=slots) as warm:
        contestants = {name: Contestant(server, root / "code") for name, server in (("cold", cold), ("warm", warm))}
        for contestant in contestants.values():
            contestant.run(4)
        contestants["warm"].until_warm()
        alone: dict[str, list[list[float]]] = {name: [] for name in contestants}
        for _ in range(trials):
            for name, contestant in contestants.items():
                alone[name].append(contestant.times())
        memory = contestants["warm"].prefork_memory()
        # The warm ones first: its prefork parent does not wait for the others to be through.
        together = {name: contestants[name].run(trials * slots) for name in ("warm", "cold")}
    middle = {
        name: dict(zip(STEPS, (statistics.median(column) for column in zip(*rows, strict=True)), strict=True))
        for name, rows in alone.items()
    }
    return {"latency_s": middle, "per_trial_s": together, "prefork_mb": memory, "trials": trials, "slots": slots}


class Contestant:
    def __init__(self, server: LiveServer, code: Path):
        self._server, self._count = server, 0
        with server.client() as client:
            self._source = client.sources.send(pack_tree(code))[0].id

    def run(self, count: int) -> float:
        """Seconds per trial, all submitted at once."""
        begin = time.time()
        with self._server.client() as client:
            names = [self._submit(client) for _ in range(count)]
            ended = [self._end(client, name) for name in names]
        return (max(ended) - begin) / count

    def times(self) -> list[float]:
        """Seconds from submitting to each of STEPS."""
        begin = time.time()
        with self._server.client() as client:
            name = self._submit(client)
            end = self._end(client, name)
            first, ready = next(line.text for line in client.jobs.lines(name) if "TIMES" in line.text).split()[1:]
        return [float(first) - begin, float(ready) - begin, end - begin]

    def until_warm(self) -> None:
        """The prefork parent is up, and what is submitted now gets it."""
        with self._server.client() as client:
            for _ in range(20):
                if "warm" in (client.jobs.get(self._last()).attempt_list[-1].nodes[0].paths or ""):
                    return
                self._end(client, self._submit(client))
        raise SystemExit("no job starts warm here; the agents' logs say why")

    def prefork_memory(self) -> dict[str, float]:
        prefork = next(p for p in self._server.processes() if "shoal.agent.prefork.parent" in command(p))
        memory = prefork.memory_full_info()
        return {"own": memory.uss / 1e6, "proportional": memory.pss / 1e6, "resident": memory.rss / 1e6}

    def _submit(self, client: Client) -> str:
        self._count += 1
        client.jobs.create(JobSpec(name=self._last(), source_id=self._source, entry=["train.py"]))
        return self._last()

    def _last(self) -> str:
        return f"trial-{self._count}"

    def _end(self, client: Client, name: str) -> float:
        while not (view := client.jobs.get(name)).status.is_terminal:
            time.sleep(LOOK_EVERY_S)
        assert view.status == "succeeded" and view.ended_at, view
        return view.ended_at.timestamp()


def report(result: dict[str, Any]) -> str:
    cold, warm = result["latency_s"]["cold"], result["latency_s"]["warm"]
    lines = [f"{'from submitting until':24} {'cold':>8} {'warm':>8}"]
    lines += [f"{step:24} {cold[step]:7.2f}s {warm[step]:7.2f}s   {cold[step] / warm[step]:.1f} ×" for step in STEPS]
    each = result["per_trial_s"]
    what = f"per trial, {result['slots']} slots"
    lines.append(f"{what:24} {each['cold']:7.2f}s {each['warm']:7.2f}s   {each['cold'] / each['warm']:.1f} ×")
    memory = result["prefork_mb"]
    lines.append(f"prefork parent: {memory['own']:.0f} MB of its own, {memory['resident']:.0f} MB with what it shares")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
