"""A full disk: refused in one line, nothing half-made, and all is well again once there is room."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import text

from shoal.core.errors import StorageFull
from shoal.server.db import Database
from shoal.server.disk_reserve import Reserve
from shoal.testing.live import live_server
from shoal.testing.patience import patient, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
IMPATIENT = {"SHOAL_PATIENCE_S": "0"}


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_refuses_new_work_and_recovers_by_itself(small_disk, code):
    folder = code({"train.py": "print('ran')", "data.bin": "x" * 300_000})
    with live_server(small_disk / "home", warm=False) as server:
        server.cli("training", "run", "before", "--dir", str(folder), "-f", "--", "train.py")
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file:  # what a buffer still holds would fail again when it is closed
            try:
                while True:
                    file.write(os.urandom(65536))
            except OSError:
                pass
        (folder / "data.bin").write_bytes(os.urandom(3_000_000))
        submit = ("training", "run", "during", "--dir", str(folder), "--", "train.py")
        refused = server.cli(*submit, check=4, env=IMPATIENT)
        errors = [line for line in refused.stderr.splitlines() if line.startswith("error:")]
        assert len(errors) == 1
        assert "full" in errors[0]
        assert [j["name"] for j in server.json("training", "list")] == ["before"]
        with ThreadPoolExecutor(1) as other, (small_disk.parent / "said").open("w+") as said:
            waiting = other.submit(_in_process, server, submit, said)
            wait_until(lambda: "Ctrl-C gives up" in (small_disk.parent / "said").read_text(), "the command waits")
            filler.unlink()
            assert waiting.result() == 0
        run = server.cli("training", "run", "after", "--dir", str(folder), "-f", "--", "train.py")
        assert "ran" in run.stdout
        server.cli("training", "wait", "during")
        assert {j["status"] for j in server.json("training", "list")} == {"succeeded"}


def _in_process(server, args, stderr):
    command = [sys.executable, "-m", "shoal.cli", *args]
    return subprocess.run(command, env=server.env(), cwd=server.home, stderr=stderr, check=False).returncode


_FILLS_THE_DISK = """
import time
with open("filler", "wb", buffering=0) as file:
    while True:
        try:
            file.write(bytes(65536))
        except OSError:
            print("full", flush=True)
            time.sleep(0.2)
"""


def test_a_job_that_fills_the_disk_is_named_and_can_be_stopped_and_deleted(small_disk, code):
    folder = code({"train.py": _FILLS_THE_DISK})
    with live_server(small_disk / "home", warm=False) as server:
        server.cli("training", "run", "hog", "--dir", str(folder), "--", "train.py")
        deadline = time.monotonic() + patient(120)
        while "disk" not in [p["name"] for p in server.json("server", "status")["problems"]]:
            assert time.monotonic() < deadline, server.json("training", "inspect", "hog")
            time.sleep(0.2)
        (folder / "data.bin").write_bytes(os.urandom(3_000_000))
        refused = server.cli(
            "training", "run", "during", "--dir", str(folder), "--", "train.py", check=4, env=IMPATIENT
        )
        assert "job 'hog'" in refused.stderr and "shoal training stop hog" in refused.stderr
        wait_until(lambda: "disk_full" in [e["kind"] for e in server.inspect("hog")["events"]], "the job is named")
        server.cli("training", "stop", "hog")
        server.cli("training", "wait", "hog", check=None)
        assert server.inspect("hog")["status"] == "stopped"
        server.cli("training", "delete", "hog", "--yes")
        assert server.json("training", "list") == []
        (folder / "train.py").write_text("print('ran')")
        deadline = time.monotonic() + patient(120)
        while server.json("server", "status")["problems"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert "ran" in server.cli("training", "run", "after", "--dir", str(folder), "-f", "--", "train.py").stdout


_TALKS = """
import os, time
for line in range(1, 100_000):
    print("line", line, flush=True)
    time.sleep(0.02)
    if os.path.exists(os.environ["ENOUGH"]):
        break
"""


def test_the_job_that_fills_the_disk_is_ended_with_the_reason_and_its_neighbour_loses_no_line(small_disk, code):
    folder, enough = code({"hog.py": _FILLS_THE_DISK, "talk.py": _TALKS}), small_disk.parent / "enough"
    with live_server(small_disk / "home", warm=False, full_disk_end_s=2.0) as server:
        env = ("--env", f"ENOUGH={enough}")
        server.cli("training", "run", "talker", "--dir", str(folder), *env, "--", "talk.py")
        server.wait_for("talker", lambda job: job.status == "running")
        server.cli("training", "run", "hog", "--dir", str(folder), "--", "hog.py")
        server.cli("training", "wait", "hog", check=1, env=IMPATIENT)
        hog = server.inspect("hog")
        assert hog["status"] == "failed" and "it filled the server's disk" in hog["reason"]
        server.cli("training", "delete", "hog", "--yes")
        wait_until(lambda: not server.json("server", "status")["problems"], "there is room again")
        enough.touch()
        server.cli("training", "wait", "talker")
        said = server.cli("training", "logs", "talker", "-f").stdout.splitlines()  # until everything has arrived
        lines = [int(line.split()[-1]) for line in said if "line " in line]
        assert lines == list(range(1, len(lines) + 1)) and len(lines) > 100


def test_the_reserve_lets_essential_writes_through_and_comes_back_with_room(small_disk):
    """Real SQLite on a real full disk: what fills it goes on taking every byte that becomes free."""
    reserve = Reserve(small_disk / "reserve", 8 << 20)
    reserve.open()
    database = Database(small_disk / "x.db")
    database.reserve = reserve
    table = "CREATE TABLE t (n INTEGER PRIMARY KEY, body BLOB)"
    database.write(lambda session: session.execute(text(table)) and None)

    def insert(n, size):
        statement = text("INSERT INTO t VALUES (:n, :body)")
        return lambda session: session.execute(statement, {"n": n, "body": bytes(size)}) and n

    def fill():
        with (small_disk / "filler").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65536))
            except OSError:
                pass

    try:
        fill()
        with pytest.raises(StorageFull):
            for n in range(1000):
                database.write(insert(n, 500_000))
        assert reserve.is_held and database.disk_problem() is not None
        assert database.write(insert(5000, 400_000), essential=True) == 5000
        assert not reserve.is_held
        fill()
        assert database.write(insert(5001, 400_000), essential=True) == 5001  # nobody else could take the rest of it
        with pytest.raises(StorageFull):
            database.write(insert(5002, 10))
        (small_disk / "filler").unlink()
        deadline = time.monotonic() + patient(60)
        while not reserve.is_held:
            assert time.monotonic() < deadline
            with suppress(StorageFull):
                database.write(insert(6000 + time.monotonic_ns() % 10**9, 10))
        assert database.disk_problem() is None
        with database.read() as session:
            kept = set(session.scalars(text("SELECT n FROM t")))
        assert {5000, 5001} <= kept and 5002 not in kept
    finally:
        database.close()
