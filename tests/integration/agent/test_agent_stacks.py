"""Stacks of real processes by all methods: reported by themselves, by the kernel, or not at all."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import shoal.sdk.emulate
from shoal.agent.workers import stacks
from shoal.testing.engines import eventually

STARTUP = Path(shoal.sdk.emulate.__file__).parent / "startup"
WORKER = """
import sys, threading, time
def rest():
    print("ready", flush=True); time.sleep(600)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
rest()
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "train.py").write_text(WORKER)
    made = []

    def start(rank, *, listens=True):
        env = {"PATH": os.environ["PATH"], "RANK": str(rank), "SHOAL_SPOOL": str(tmp_path)}
        env |= {"PYTHONPATH": str(STARTUP)} if listens else {}
        argv = [sys.executable, "-u", str(tmp_path / "train.py")]
        made.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True))
        assert made[-1].stdout.readline() == "ready\n"
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()
        process.stdout.close()


def gather(tmp_path, ranks):
    return {found["rank"]: found for found in stacks.gather(os.getpid(), ranks, tmp_path, tmp_path)}


def test_a_worker_that_listens_tells_again_and_again_and_goes_on(start, tmp_path):
    worker = start(0)
    for _ in range(3):
        found = gather(tmp_path, [0])[0]
        assert (found["inside"], found["at"], found["waits"]) == ("rest", "train.py:4", False)
        assert found["frames"] == ["rest (train.py:4)", "<module> (train.py:6)"]
    assert worker.poll() is None


def test_of_others_the_kernels_word_is_told_and_none_is_harmed(start, tmp_path, monkeypatch):
    monkeypatch.setattr(stacks.shutil, "which", lambda program: None)
    deaf, frozen = start(1, listens=False), start(2)
    frozen.send_signal(signal.SIGSTOP)
    eventually(lambda: stacks._state(frozen.pid) == "T")
    found = gather(tmp_path, range(1, 4))
    assert found[1]["note"].endswith("its Python stack is not available")
    assert found[2]["note"] == "stopped by a signal (SIGSTOP), and cannot answer"
    assert found[3]["note"] == "without a process"
    assert [found[rank].get("stopped", False) for rank in (1, 2, 3)] == [False, True, False]
    frozen.send_signal(signal.SIGCONT)
    assert gather(tmp_path, [2])[2]["at"] == "train.py:4"
    assert deaf.poll() is None and frozen.poll() is None


def test_the_uppermost_process_of_a_rank_is_the_worker(tmp_path):
    code = "import subprocess, sys, time; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    outer = subprocess.Popen(
        [sys.executable, "-c", code], env={"RANK": "7"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert outer.stdout.readline() == "1\n"
    assert stacks.rank_processes(os.getpid())[7] == outer.pid
    outer.communicate("\n")


def test_a_link_put_in_the_place_of_a_workers_file_is_not_followed(start, tmp_path, monkeypatch):
    monkeypatch.setattr(stacks.shutil, "which", lambda program: None)
    monkeypatch.setattr(stacks, "_WAIT_S", 0.3)
    worker = start(0)
    file = tmp_path / "stacks-0.txt"
    file.unlink()
    (tmp_path / "secret").write_text('Thread 0x1:\n  File "secret", line 1 in secret\n')
    file.symlink_to(tmp_path / "secret")
    assert gather(tmp_path, [0])[0]["note"].endswith("its Python stack is not available")
    assert worker.poll() is None


def test_what_a_worker_has_done_tells_one_that_works_from_one_that_hangs(start, tmp_path):
    start(0)
    first, second = gather(tmp_path, [0])[0], gather(tmp_path, [0])[0]
    assert first["cpu_s"] > 0 and first["moved"] > 0
    assert second["cpu_s"] - first["cpu_s"] < 0.2 and second["moved"] - first["moved"] < 60_000
