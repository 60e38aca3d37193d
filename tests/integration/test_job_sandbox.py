"""A job in the full sandbox of a shared server works: data, streaming, ranks, checkpoints; and its level is shown."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from shoal.testing.live import live_server

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("bwrap"), reason="S3 needs root and bubblewrap")

SCRIPT = """
import os, socket, sys, tempfile, time
from pathlib import Path

rank = int(os.environ["RANK"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(address) as listener:
        end = listener.accept()[0]
        print("ranks meet:", end.recv(5).decode(), flush=True)
    import fsspec
    streamed = fsspec.open("shoal://words/a.txt", "rt").open().read()
    print("mounted:", Path("/input/words/a.txt").read_text(), "streamed:", streamed, flush=True)
    Path("/output-checkpoint/step-1").mkdir()
    Path("/output-checkpoint/step-1/model.bin").write_bytes(b"weights")
    Path.home().joinpath("kept").write_text("x")
    with tempfile.NamedTemporaryFile() as file:
        print("temporary:", file.name.startswith("/tmp/"))
    print("to stderr", file=open("/dev/stderr", "w"))
    print("parents:", os.path.exists(os.environ["OUTSIDE"]))
    import json, urllib.request
    def mlflow(path, **body):
        url = os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/" + path
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return json.load(direct.open(urllib.request.Request(url, json.dumps(body).encode(), method="POST")))
    run = mlflow("runs/create", experiment_id="0")["run"]["info"]["run_id"]
    mlflow("runs/log-metric", run_id=run, key="loss", value=0.5, step=7, timestamp=int(1000 * time.time()))
else:
    for _ in range(300):
        try:
            with socket.create_connection(address, timeout=5) as end:
                end.sendall(b"hello")
            break
        except OSError:
            time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with live_server(tmp_path_factory.mktemp("s3") / "home", warm=False, job_sandbox="S3") as server:
        yield server


def test_a_job_at_s3_reads_streams_meets_its_peers_and_keeps_checkpoints(server, tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.txt").write_text("alpha")
    server.cli("dataset", "push", "words", "--file", str(tmp_path / "words"))
    code = tmp_path / "code"
    code.mkdir()
    (code / "t.py").write_text(SCRIPT)
    options = ["--accels", "2", "--dataset", "words", "--max-restarts", "0", "--env", f"OUTSIDE={tmp_path}/words/a.txt"]
    done = server.cli("training", "run", "walled", "--dir", str(code), *options, "-f", "--", "t.py", check=None)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (
        "ranks meet: hello",
        "mounted: alpha streamed: alpha",
        "temporary: True",
        "to stderr",
        "parents: False",
    ):
        assert line in done.stdout, done.stdout
    found = server.inspect("walled")
    assert found["attempt_list"][-1]["nodes"][0]["sandbox"] == "S3"
    assert [one["name"] for one in server.json("checkpoint", "list")] == ["step-1"]
    assert server.json("training", "metrics", "walled") == {"loss": [[7, 0.5]]}


def test_a_limit_that_is_given_with_the_job_ends_it_with_that_reason(server, tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\n")
    options = ["--memory", "150M", "--max-restarts", "0"]
    server.cli("training", "run", "large", "--dir", str(tmp_path), *options, "-f", "--", "t.py", check=None)
    assert server.inspect("large")["attempt_list"][-1]["nodes"][0]["reason"] == "out of memory: used 150 MB of 150 MB"
