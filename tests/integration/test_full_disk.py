"""A full disk: refused in one line, nothing half-made, and all is well again once there is room."""

import os
import subprocess

import pytest

from shoal.testing.live import live_server

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_refuses_new_work_and_recovers_by_itself(small_disk, code):
    folder = code({"train.py": "print('ran')", "data.bin": "x" * 300_000})
    with live_server(small_disk / "home") as server:
        server.cli("training", "run", "before", "--dir", str(folder), "-f", "--", "train.py")
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file:  # what a buffer still holds would fail again when it is closed
            try:
                while True:
                    file.write(os.urandom(65536))
            except OSError:
                pass
        (folder / "data.bin").write_bytes(os.urandom(3_000_000))
        refused = server.cli("training", "run", "during", "--dir", str(folder), "--", "train.py", check=4)
        errors = [line for line in refused.stderr.splitlines() if line.startswith("error:")]
        assert len(errors) == 1
        assert "full" in errors[0]
        assert [j["name"] for j in server.json("training", "list")] == ["before"]
        filler.unlink()
        run = server.cli("training", "run", "after", "--dir", str(folder), "-f", "--", "train.py")
        assert "ran" in run.stdout
        assert {j["status"] for j in server.json("training", "list")} == {"succeeded"}
