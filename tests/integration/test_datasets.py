"""Datasets from a folder to a job and back, as a person does it: interrupted, changed, damaged, healed."""

import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from slow_line import slow_line

from shoal.client.local import owner_key, running_server
from shoal.testing.patience import patient


def content(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in Path(root).rglob("*") if p.is_file()}


@pytest.fixture
def tree(tmp_path):
    """About 24 MB: two large files and 200 small ones."""
    root, noise = tmp_path / "tree", random.Random(5)
    (root / "small").mkdir(parents=True)
    for name in ("a.bin", "b.bin"):
        (root / name).write_bytes(noise.randbytes(10 << 20))
    for i in range(200):
        (root / f"small/{i}.bin").write_bytes(noise.randbytes(20_000))
    return root


class FarAway:
    """Commands run over a slow line, from a machine that has only an address and a key."""

    def __init__(self, server, line, home):
        self.server, self.line = server, line
        key = owner_key(server.layout, running_server(server.layout))
        self.env = server.env() | {"SHOAL_HOME": str(home), "SHOAL_URL": line.url, "SHOAL_API_KEY": key}

    def run(self, *args):
        return self.server.cli(*args, env=self.env)

    def interrupt(self, *args, when):
        """Ctrl-C once `when()` says so; what it printed."""
        command = [sys.executable, "-m", "shoal.cli", *args]
        process = subprocess.Popen(command, env=self.env, stderr=subprocess.PIPE, text=True, cwd=self.server.home)
        when()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=patient(30))
        assert process.returncode == 130, said
        return said


@pytest.fixture
def far_away(server, tmp_path):
    with slow_line(running_server(server.layout).url, 12e6) as line:
        yield FarAway(server, line, tmp_path / "elsewhere")


def test_an_interrupted_push_goes_on_where_it_stopped(server, far_away, tree):
    line, size = far_away.line, sum(map(len, content(tree).values()))
    said = far_away.interrupt("dataset", "push", "cut", "--file", str(tree), when=lambda: line.wait_for_up(12_000_000))
    assert "Run the same command again to continue." in said
    assert [d["status"] for d in server.json("dataset", "list") if d["name"] == "cut"] == ["uploading"]
    first, line.up, line.bytes_per_s = line.up, 0, 1e9
    pushed = json.loads(far_away.run("dataset", "push", "cut", "--file", str(tree), "--json").stdout)
    assert pushed["status"] == "available"
    # In flight at the time were at most four requests of a few seconds' worth.
    assert line.up < size - first / 2, f"{first} bytes were sent before, and now again {line.up} of {size}"
    assert pushed["sent"] < line.up


def test_an_interrupted_fetch_goes_on_where_it_stopped(server, far_away, tree, tmp_path):
    line = far_away.line
    server.cli("dataset", "push", "cut-fetch", "--file", str(tree))
    args = ("dataset", "fetch", "cut-fetch", "--destination", str(tmp_path / "out"))

    def half():
        deadline = threading.Event()
        while line.down < 12_000_000:
            deadline.wait(0.005)

    said = far_away.interrupt(*args, when=half)
    assert "Run the same command again to continue." in said and not (tmp_path / "out").exists()
    first, line.bytes_per_s = line.down, 1e9
    fetched = json.loads(far_away.run(*args, "--json").stdout)
    assert content(tmp_path / "out") == content(tree)
    assert fetched["received"] < fetched["size"] - first / 2
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_a_push_with_one_percent_changed_sends_at_most_two(server, tmp_path):
    root, noise = tmp_path / "fifty", random.Random(6)
    root.mkdir()
    (root / "large.bin").write_bytes(noise.randbytes(10_000_000))
    for i in range(400):
        (root / f"{i}.bin").write_bytes(noise.randbytes(100_000))
    first = server.json("dataset", "push", "fifty", "--file", str(root))
    assert (first["version"], first["sent"]) == (1, 50_000_000)
    for i in range(0, 400, 80):
        with (root / f"{i}.bin").open("r+b") as file:
            file.seek(50_000)
            file.write(noise.randbytes(100))
    second = server.json("dataset", "push", "fifty", "--file", str(root))
    assert (second["version"], second["unchanged"]) == (2, False)
    assert second["sent"] <= 0.02 * 50_000_000
    third = server.json("dataset", "push", "fifty", "--file", str(root))
    assert (third["version"], third["unchanged"], third["sent"]) == (2, True, 0)
    found = server.json("dataset", "diff", "fifty@1", "fifty")
    assert [f["path"] for f in found["changed"]] == ["0.bin", "160.bin", "240.bin", "320.bin", "80.bin"]
    server.cli("dataset", "fetch", "fifty", "--destination", str(tmp_path / "out"))
    assert content(tmp_path / "out") == content(root)


def test_a_flipped_bit_is_noticed_named_and_healed(own_server, tree, tmp_path):
    server = own_server
    server.cli("dataset", "push", "hurt", "--file", str(tree))
    needle = (tree / "b.bin").read_bytes()[5_000_000:5_000_064]
    for blob in (p for p in server.layout.store_dir.rglob("*") if p.is_file()):
        data = blob.read_bytes()
        if (at := data.find(needle)) >= 0:
            blob.write_bytes(data[: at + 9] + bytes([data[at + 9] ^ 1]) + data[at + 10 :])
    nearby = server.cli("dataset", "fetch", "hurt", "--destination", str(tmp_path / "out"), check=4)
    assert "b.bin cannot be fetched: a part of it is damaged in the store." in nearby.stderr
    with slow_line(running_server(server.layout).url, 1e9) as line:
        far = FarAway(server, line, tmp_path / "elsewhere")
        through_http = server.cli(
            "dataset", "fetch", "hurt", "--destination", str(tmp_path / "o2"), env=far.env, check=4
        )
    assert through_http.stderr == nearby.stderr
    assert not (tmp_path / "out").exists() and not (tmp_path / "o2").exists()
    assert [d["name"] for d in server.json("store", "check", check=1)["hurt"]] == ["hurt@1"]
    server.cli("store", "check", "--quarantine", check=1)
    assert "Unchanged" in server.cli("dataset", "push", "hurt", "--file", str(tree)).stderr
    assert server.json("store", "check")["damaged_chunks"] == []
    server.cli("dataset", "fetch", "hurt", "--destination", str(tmp_path / "out"))
    assert content(tmp_path / "out") == content(tree)


def test_a_job_finds_its_datasets_and_keeps_the_version_it_was_given(server, code, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x.txt").write_text("one")
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("wrapped/y.txt", "unpacked")
    server.cli("dataset", "push", "data", "--file", str(tmp_path / "d"))
    server.cli("dataset", "push", "zipped", "--file", str(tmp_path / "z.zip"))
    server.cli("dataset", "push", "nothing", "--empty")
    script = """
import os
from pathlib import Path
root = Path(os.environ["DATA_LOCATION"])
print("FOUND", {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*.txt"))}, (root / "nothing").is_dir())
"""
    run = server.cli(
        "training", "run", "reads", "--dir", str(code({"train.py": script})), "--dataset", "data", "--dataset", "zipped",
        "--dataset", "nothing", "-f", "--", "train.py",
    )  # fmt: skip
    assert "FOUND {'data/x.txt': 'one', 'zipped/y.txt': 'unpacked'} True" in run.stdout
    (tmp_path / "d/x.txt").write_text("two")
    assert "New version 2" in server.cli("dataset", "push", "data", "--file", str(tmp_path / "d")).stderr
    server.cli("dataset", "fetch", "data@1", "--destination", str(tmp_path / "old"))
    assert content(tmp_path / "old") == {"x.txt": b"one"}


def test_a_check_finds_what_would_hurt(server, tmp_path):
    root = tmp_path / "messy"
    root.mkdir()
    (root / "train.jsonl").write_text('{"t": "a"}\n{"t": "b"}\n')
    (root / "test.jsonl").write_text('{"t": "b"}\n{"t": \n')
    (root / "empty.bin").touch()
    server.cli("dataset", "push", "messy", "--file", str(root))
    found = server.json("dataset", "check", "messy", check=1)["problems"]
    assert {(p["kind"], p["path"], p["line"]) for p in found} == {
        ("empty_file", "empty.bin", None),
        ("unreadable", "test.jsonl", 2),
        ("duplicate", "train.jsonl", 2),
    }
    (root / "test.jsonl").write_text('{"t": "c"}\n')
    (root / "empty.bin").unlink()
    server.cli("dataset", "push", "messy", "--file", str(root))
    server.cli("dataset", "check", "messy")


@contextlib.contextmanager
def web_server(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join()


def test_the_server_fetches_a_url_by_itself(server, tmp_path):
    (tmp_path / "web").mkdir()
    with zipfile.ZipFile(tmp_path / "web/data.zip", "w") as archive:
        archive.writestr("a.txt", "from afar")
    with web_server(tmp_path / "web") as url:
        done = server.cli("dataset", "push", "imported", "--file", f"{url}/data.zip")
        assert done.stdout == "imported@1\n" and "1 file, 9 B" in done.stderr
        again = server.cli("dataset", "push", "imported", "--file", f"{url}/data.zip")
        assert again.stdout == "imported@1\n" and "Unchanged" in again.stderr
        failed = server.cli("dataset", "push", "imported", "--file", f"{url}/nope.zip", check=None)
        assert failed.returncode != 0 and "error:" in failed.stderr
    server.cli("dataset", "fetch", "imported", "--destination", str(tmp_path / "out"))
    assert content(tmp_path / "out") == {"a.txt": b"from afar"}


def test_deleted_versions_are_gone_and_their_room_is_freed(own_server, tmp_path):
    (tmp_path / "x.bin").write_bytes(os.urandom(3_000_000))
    own_server.cli("dataset", "push", "short-lived", "--file", str(tmp_path / "x.bin"))
    before = own_server.json("store", "usage")["size"]
    own_server.cli("dataset", "delete", "short-lived", "--yes")
    own_server.cli("dataset", "fetch", "short-lived", check=3)
    own_server.cli("store", "gc", "--grace", "0")
    assert own_server.json("store", "usage")["size"] < before - 2_900_000
