"""Effect of a server that hangs on the speed of training: `python bench/sdk_hung.py [--spans 40]`

A job logs every step of about 3 ms while its server is stopped (SIGSTOP) and continued in turns. A span with the server hung is
compared with those right before and after it, because other changes of the machine's speed last longer. Shown: how much slower steps were with
the server hung, as a median over spans with its standard error, and how long `run.finish` took with the server hung.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.testing.live import LiveServer, live_server

SPAN_S = 1.5
SETTLE_S = 0.2
"""Beginning of each span that is not measured."""
TRAIN = """
import json, os, sys, time, torch, shoal
torch.set_num_threads(1)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(512, 256)
run = shoal.init()
model, optimizer = run.prepare(model, optimizer)
times = []
end = time.time() + float(sys.argv[1])
print("begins", flush=True)
while time.time() < end:
    start = time.perf_counter()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    run.step(loss=loss, lr=1e-3)
    times.append((time.time(), time.perf_counter() - start))
start = time.perf_counter()
run.finish()
found = {"finish_s": time.perf_counter() - start, "times": times}
with open(sys.argv[2], "w") as file:
    json.dump(found, file)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spans", type=int, default=40)
    count = parser.parse_args().spans
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        code, result = Path(folder, "code"), Path(folder, "times.json")
        code.mkdir()
        (code / "train.py").write_text(TRAIN)
        with live_server(Path(folder, "home"), slots=1) as server:
            spans = _by_turns(server, code, result, count)
            found = json.loads(result.read_text())
    took = [_median(found["times"], span) for span in spans]
    changes = [2 * took[i] / (took[i - 1] + took[i + 1]) - 1 for i in range(1, len(took) - 1, 2)]
    error = 1.25 * statistics.stdev(changes) / len(changes) ** 0.5
    print(f"steps with the server hung: {statistics.median(changes):+.2%} ± {error:.2%} over {len(changes)} spans")
    print(f"run.finish with the server hung: {found['finish_s']:.3f} s")


def _by_turns(server: LiveServer, code: Path, result: Path, count: int) -> list[tuple[float, float]]:
    """Spans, every other one with the server hung; the run ends in a hung one that is not among them."""
    seconds = (2 * count + 1.5) * SPAN_S
    server.cli("training", "run", "hung", "--dir", str(code), "--", "train.py", str(seconds), str(result))
    while not any(line["text"] == "begins" for line in server.logs("hung")):
        time.sleep(0.1)
    pid = json.loads((server.home / "server" / "server.json").read_text())["pid"]
    spans = [_span()]
    for _ in range(count):
        with _hung(pid):
            spans.append(_span())
        spans.append(_span())
    with _hung(pid):
        while not result.exists():
            time.sleep(0.1)
    server.wait_for("hung", lambda job: job.status.is_terminal)
    return spans


@contextmanager
def _hung(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _span() -> tuple[float, float]:
    start = time.time() + SETTLE_S
    time.sleep(SPAN_S)
    return start, time.time()


def _median(times: list[tuple[float, float]], span: tuple[float, float]) -> float:
    return statistics.median(took for at, took in times if span[0] <= at <= span[1])


if __name__ == "__main__":
    main()
