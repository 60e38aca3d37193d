"""Real ranks, killed at random instants: what comes out is bit for bit what an unbroken run gives."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.core.ports import free_port
from shoal.sdk.samples.order import epoch_order
from shoal.sdk.samples.sample_log import audit
from shoal.sdk.saving import layout
from shoal.testing.forks import Fork
from shoal.testing.patience import patient

pytestmark = [pytest.mark.integration, pytest.mark.torch]

KILLS = int(os.environ.get("SHOAL_KILLS", "6"))
WORKER = Path(__file__).with_name("resume_worker.py")
SAMPLES, SEED, EPOCHS = 61, 3, 3


class Ranks:
    """Starts ranks, and ends those that a test leaves behind."""

    def __init__(self) -> None:
        self._running: dict[int, Fork] = {}

    def start(self, directory: Path, world: int, **settings: Any) -> list[int]:
        (directory / "spool").mkdir(parents=True, exist_ok=True)
        port = free_port()
        pids = []
        for rank in range(world):
            env = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "SHOAL_SPOOL": str(directory / "spool"),
                "OUTPUT_DIR": str(directory / "checkpoints"),
            }
            given = {"seen": str(directory / "seen"), "final": str(directory / "final"), "epochs": EPOCHS, **settings}
            with (directory / f"rank-{rank}.log").open("a") as log:
                command = [sys.executable, WORKER, json.dumps(given)]
                process = Fork(command, env=env, stdout=log, stderr=log, start_new_session=True)
            self._running[process.pid] = process
            pids.append(process.pid)
        return pids

    def wait(self, pids: list[int]) -> list[int]:
        """Return the exit codes, once all have ended."""
        codes = [self._running.pop(pid).wait(patient(240)) for pid in pids]
        for pid in pids:
            # A DataLoader worker that was just being started does not notice that its parent is gone; agents sweep so too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return codes

    def run(self, directory: Path, world: int, **settings: Any) -> None:
        codes = self.wait(self.start(directory, world, **settings))
        assert codes == [0] * world, logs(directory)

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks()
    yield started
    started.close()


@pytest.fixture(scope="module")
def unbroken(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that nothing happened to."""
    directory = tmp_path_factory.mktemp("unbroken")
    ranks.run(directory, 2)
    return directory


def test_killed_at_random_instants_the_final_weights_are_bit_identical(
    ranks: Ranks, unbroken: Path, tmp_path: Path
) -> None:
    draw = random.Random(int(os.environ.get("SHOAL_KILL_SEED", "0")) or time.time_ns())
    kills, lineage, resumes = 0, 0, 0
    while kills < KILLS:
        directory, lineage = tmp_path / str(lineage), lineage + 1
        num_workers = 2 * (lineage % 2)
        while True:
            (directory / "final.0").unlink(missing_ok=True)  # of a rank that was killed after it had come to the end
            pids = ranks.start(directory, 2, num_workers=num_workers, every=2, pace_s=0.04)
            if kills >= KILLS:
                assert ranks.wait(pids) == [0, 0], logs(directory)
                break
            reach(directory, steps=draw.randint(0, 15))
            time.sleep(draw.uniform(0.0, 0.05))  # the instant of the kill is what is being varied
            draw.shuffle(pids)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            codes = ranks.wait(pids)
            if codes == [0, 0]:
                break
            kills += 1
        assert_same_end(unbroken, directory, f"lineage {lineage}, num_workers={num_workers}")
        assert_every_sample_once(directory)
        resumes += sum(r["k"] == "d" and r["from"] > 0 for r in records(directory))
    assert resumes >= KILLS // 2, "most kills came too early to test anything"


def test_killed_with_four_workers_it_goes_on_with_two_one_and_three_in_the_same_order(
    ranks: Ranks, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    ranks.run(whole, 4)
    expected = order_seen(whole)
    assert expected == {(b // 4, b % 4): part for b, part in enumerate(planned(16))}
    broken = tmp_path / "broken"
    for world, hang_at in ((4, 3), (2, 6), (1, 9), (3, None)):
        pids = ranks.start(broken, world, every=1, hang_at=hang_at)
        if hang_at is None:
            assert ranks.wait(pids) == [0] * world, logs(broken)
            break
        for rank in range(world):
            wait_for(broken / f"seen.hangs.{rank}", broken)
        assert (broken / "checkpoints" / layout.name_of(hang_at)).is_dir()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        ranks.wait(pids)
        for rank in range(world):
            (broken / f"seen.hangs.{rank}").unlink()
    assert order_seen(broken) == expected
    report = assert_every_sample_once(broken)
    assert report.sessions == 4


def test_a_signal_to_one_rank_has_all_ranks_save_at_one_step_and_stop(ranks: Ranks, tmp_path: Path) -> None:
    pids = ranks.start(tmp_path, 2, every=10**9, epochs=10**6)
    wait_for(tmp_path / "seen.0", tmp_path, holds="[3, true")
    os.kill(pids[1], signal.SIGTERM)
    assert ranks.wait(pids) in ([0, 0], [143, 143]), logs(tmp_path)
    saved = layout.saved_in(tmp_path / "checkpoints")
    assert len(saved) == 1, logs(tmp_path)
    assert layout.verify(saved[0])["step"] >= 3
    for rank in range(2):
        last = json.loads((tmp_path / f"seen.{rank}").read_text().splitlines()[-1])
        assert last[0] == layout.step_of(saved[0]), "the last step made is the step saved"


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(ranks: Ranks, unbroken: Path, tmp_path: Path) -> None:
    ranks.run(tmp_path, 2, every=5)
    newest, older = layout.saved_in(tmp_path / "checkpoints")[:2]
    model = newest / "model.pt"
    content = bytearray(model.read_bytes())
    content[len(content) // 2] ^= 1
    model.write_bytes(content)
    ranks.run(tmp_path, 2, every=5)
    assert_same_end(unbroken, tmp_path, "after a flipped bit")
    warned = [r for r in records(tmp_path) if r["k"] == "w" and r["code"] == "resume"]
    assert any(str(model) in r["text"] and older.name in r["text"] for r in warned)
    (layout.saved_in(tmp_path / "checkpoints")[0] / "optimizer.pt").unlink()
    for path in layout.saved_in(tmp_path / "checkpoints"):
        (path / "training.pt").write_bytes(b"torn")
    codes = ranks.wait(ranks.start(tmp_path, 2))
    assert codes == [1, 1]
    assert "training.pt" in logs(tmp_path) and "No checkpoint can be resumed from" in logs(tmp_path)


def reach(directory: Path, steps: int) -> None:
    """Wait until this many more steps were made, or all of them."""
    seen, until = directory / "seen.0", time.monotonic() + patient(60)
    lines = made = seen.read_text().count("\n") if seen.exists() else 0
    while made < lines + steps and not (directory / "final.0").exists():
        assert time.monotonic() < until, logs(directory)
        time.sleep(0.002)
        made = seen.read_text().count("\n") if seen.exists() else 0


def assert_same_end(reference: Path, directory: Path, what: str) -> None:
    for rank in range(2):
        a, b = (torch.load(d / f"final.{rank}", weights_only=True) for d in (reference, directory))
        for name, tensor in a["model"].items():
            assert torch.equal(tensor, b["model"][name]), f"{what}: {name} on rank {rank}\n{logs(directory)}"
        assert torch.equal(a["rng"], b["rng"]), f"{what}: generator of rank {rank}"
        for number, state in a["optimizer"].items():
            for name, tensor in state.items():
                assert torch.equal(tensor, b["optimizer"][number][name]), f"{what}: optimizer {number} {name}"


def assert_every_sample_once(directory: Path) -> Any:
    report = audit(records(directory))
    assert report.ok, f"{report.difference}\n{logs(directory)}"
    assert (report.epochs, report.samples) == (EPOCHS, EPOCHS * SAMPLES), report
    return report


def order_seen(directory: Path) -> dict[tuple[int, int], list[int]]:
    """(epoch, batch) → samples in the order of ranks, from what the script itself wrote down; the last time counts."""
    shares: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for file in sorted(directory.glob("seen.?")):
        pieces: list[int] = []
        for step, completes, indices in map(json.loads, file.read_text().splitlines()):
            pieces += indices
            if completes:
                shares[step][int(file.suffix[1:])] = pieces
                pieces = []
    whole = {step: [i for rank in sorted(found) for i in found[rank]] for step, found in shares.items()}
    return {((step - 1) // 4, (step - 1) % 4): indices for step, indices in whole.items()}


def planned(batch: int) -> list[list[int]]:
    return [
        epoch_order(SAMPLES, SEED, epoch)[start : start + batch]
        for epoch in range(EPOCHS)
        for start in range(0, SAMPLES, batch)
    ]


def records(directory: Path) -> list[dict[str, Any]]:
    found = []
    for file in sorted((directory / "spool").glob("rank-*.jsonl")):
        for line in file.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # torn by a kill
    return found


def wait_for(path: Path, directory: Path, holds: str = "") -> None:
    until = time.monotonic() + patient(60)
    while not (path.exists() and (not holds or holds in path.read_text())):
        assert time.monotonic() < until, f"{path} did not appear\n{logs(directory)}"
        time.sleep(0.01)


def logs(directory: Path) -> str:
    return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(directory.glob("*.log")))
