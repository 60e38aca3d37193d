"""Metrics from a worker's spool file to the chart, through kills of workers, agents and the server; and runs brought in."""

import json
import os
import shutil
import signal
import struct
import time
import zlib

import psutil
import pytest

from shoal.testing.engines import eventually

# Writes what the SDK writes. Rank 0 saves a checkpoint at step 100; the first attempt goes on until it is killed.
WRITER = """
import json, os, sys, time
total, spool, rank = int(sys.argv[1]), os.environ["SHOAL_SPOOL"], int(os.environ.get("RANK", 0))
attempt, resume = int(os.environ["SHOAL_ATTEMPT"]), os.environ.get("SHOAL_RESUME_FROM")
fd, lines = os.open(f"{spool}/rank-{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 0
def write(kind, **fields):
    global lines
    os.write(fd, (json.dumps({"t": round(time.time(), 3), "n": lines, "k": kind, **fields}) + "\\n").encode())
    lines += 1
def save(step):
    root = os.environ["OUTPUT_DIR"]
    tmp, name = f"{root}/.tmp-step-{step:09d}", f"step-{step:09d}"
    os.makedirs(tmp)
    open(f"{tmp}/model.pt", "wb").write(b"weights" * step)
    about = {"format": 1, "step": step, "metrics": {"loss": 0.25, "eval/loss": 0.5}, "files": {"model.pt": {"size": 7 * step}}}
    open(f"{tmp}/shoal.json", "w").write(json.dumps(about))
    os.rename(tmp, f"{root}/{name}")
    write("c", i=step, name=name)
if rank == 1:
    write("w", code="test", text="rank 1 is idle")
    write("l", name="train", e=0, i=[0, 1], p=[0, 1], c=1, r=[1, 2])
    while attempt == 1:
        time.sleep(1)
    sys.exit()
start = json.load(open(f"{resume}/shoal.json"))["step"] if resume else 0
write("h", v={"lr": 0.1, "attempt": attempt})
write("p", i=start, total=total, epoch=None, epochs=None, done=False)
step = start
while step < total or attempt == 1:
    step += 1
    write("s", i=step, v={"loss": step + attempt / 10, "bad": "nan" if step % 2 else 1})
    if step % 50 == 0:
        write("e", i=step, v={"eval/verdict": f"good at {step}", "eval/loss": 1 / step})
    if step == 100 and not resume:
        save(step)
    if step % 20 == 0:
        time.sleep(0.05)
    if attempt == 1 and step >= 400:
        print("far enough", flush=True)
        time.sleep(600)
write("p", i=step, total=total, epoch=None, epochs=None, done=True)
write("f", i=step, status="finished", why=None)
"""


def metrics(server, job, *args):
    return server.json("training", "metrics", job, *args)


def worker(job_id, rank):
    for process in psutil.process_iter():
        try:
            env = process.environ()
            if env.get("SHOAL_JOB_ID") == job_id and env.get("RANK") == str(rank):
                return process
        except psutil.Error:
            continue
    raise AssertionError(f"no worker of rank {rank}")


def test_a_history_over_a_killed_worker_and_a_killed_server_is_stitched_whole_and_once(own_server, code):
    server = own_server
    folder = code({"train.py": WRITER})
    server.cli("training", "run", "kill", "--dir", str(folder), "--accels", "2", "--", "train.py", "300")
    view = server.wait_for("kill", lambda j: j.progress and j.progress.source == "sdk" and j.progress.step > 20)
    server.kill()
    [home] = [d for d in server.layout.nodes_dir.iterdir() if view.id in (d / "launch.json").read_text()]
    wrote = home / "spool" / "sdk" / "rank-0.jsonl"
    eventually(lambda: b'"i": 400' in wrote.read_bytes())
    server.start()
    eventually(lambda: "far enough" in server.cli("training", "logs", "kill").stdout)
    eventually(lambda: server.json("training", "checkpoints", "kill"))
    worker(view.id, 0).send_signal(signal.SIGKILL)
    after = server.wait_for("kill", lambda j: j.status.is_terminal, "finishes")
    assert (after.status, after.attempts) == ("succeeded", 2), after.reason
    assert after.progress.fraction == 1.0 and after.progress.source == "sdk"
    loss = metrics(server, "kill")["loss"]
    assert loss == [[i, i + 0.1] for i in range(1, 101)] + [[i, i + 0.2] for i in range(101, 301)]
    assert metrics(server, "kill")["bad"][:2] == [[1, "nan"], [2, 1.0]]
    assert metrics(server, "kill", "--name", "eval/verdict")["eval/verdict"][-1] == [300, "good at 300"]
    with server.client() as client:
        ghosts = client.metrics.read("kill", ["loss"], ghosts=True)["ghosts"]["loss"]
        assert ghosts == [[i, i + 0.1, 1] for i in range(101, 401)]
        assert client.metrics.config("kill") == {"lr": 0.1, "attempt": 2}
        assert {(r["attempt"], r["rank"]) for r in client.metrics.ledger("kill")} == {(1, 1), (2, 1)}
    [saved] = server.json("training", "checkpoints", "kill")
    assert (saved["step"], saved["train_loss"], saved["eval_loss"]) == (100, 0.25, 0.5)
    assert "[shoal] warning: rank 1 is idle" in server.cli("training", "logs", "kill").stdout
    shown = server.cli("training", "metrics", "kill").stdout
    assert "loss" in shown and "▁" in shown
    followed = server.cli("training", "metrics", "kill", "-f", "--json", "--name", "loss").stdout.splitlines()
    assert [json.loads(line) for line in followed] == [{"step": step, "loss": value} for step, value in loss]
    assert "eval/loss" in server.cli("training", "inspect", "kill").stdout
    assert server.cli("training", "metrics", "kill", "--name", "loss", "--csv").stdout.splitlines()[:2] == [
        "metric,step,value",
        "loss,1,1.1",
    ]


def test_what_a_killed_agent_had_not_sent_still_arrives_once(server, code):
    folder = code({"train.py": WRITER})
    server.cli("training", "run", "salvaged", "--dir", str(folder), "--max-restarts", "0", "--", "train.py", "300")
    view = server.wait_for("salvaged", lambda j: j.progress and j.progress.step >= 400)
    psutil.Process(view.attempt_list[0].nodes[0].pid).kill()
    server.wait_for("salvaged", lambda j: j.status.is_terminal)
    eventually(lambda: len(metrics(server, "salvaged").get("loss", [])) == 400)
    assert [x for x, _ in metrics(server, "salvaged")["loss"]] == list(range(1, 401))


MLFLOW = """
import json, os, sys, time, urllib.request
uri, rank = os.environ["MLFLOW_TRACKING_URI"], int(os.environ["RANK"])
def ask(path, **body):
    request = urllib.request.Request(f"{uri}/api/2.0/mlflow/{path}", json.dumps(body).encode(), method="POST")
    return json.load(urllib.request.urlopen(request))
run = ask("runs/create", experiment_id="0", run_name="mine")["run"]["info"]
ask("runs/log-parameter", run_id=run["run_id"], key="lr", value="0.25")
for step in range(3):
    ask("runs/log-metric", run_id=run["run_id"], key="loss", value=step + rank, step=step, timestamp=int(1000 * time.time()))
os.makedirs(run["artifact_uri"])
open(f"{run['artifact_uri']}/note-{rank}.txt", "w").write("kept")
"""


def test_what_mlflows_client_logs_is_the_jobs_own(server, code):
    folder = code({"train.py": MLFLOW, "own.py": "import os; print('own:', os.environ['MLFLOW_TRACKING_URI'])"})
    server.cli("training", "run", "flow", "--dir", str(folder), "--accels", "2", "--", "train.py")
    server.cli("training", "run", "own", "--dir", str(folder), "--env", "MLFLOW_TRACKING_URI=http://x", "--", "own.py")
    done = server.wait_for("flow", lambda j: j.status.is_terminal)
    assert done.status == "succeeded", done.reason
    assert metrics(server, "flow") == {"loss": [[0, 0.0], [1, 1.0], [2, 2.0]]}
    with server.client() as client:
        assert client.metrics.config("flow") == {"lr": 0.25}
    server.wait_for("own", lambda j: j.status.is_terminal)
    assert "own: http://x" in server.cli("training", "logs", "own").stdout


PICTURES = """
import json, os, time
spool = os.environ["SHOAL_SPOOL"]
os.makedirs(f"{spool}/media")
with open(f"{spool}/rank-0.jsonl", "a") as file:
    for step in range(3):
        name = f"media/p-{step}.png"
        open(f"{spool}/{name}", "wb").write(b"\\x89PNG\\r\\n\\x1a\\n" + bytes([step]) * 1000)
        record = {"t": time.time(), "n": step, "k": "m", "i": step, "name": "sample", "type": "image", "file": name, "mime": "image/png"}
        file.write(json.dumps(record) + "\\n")
    file.write(json.dumps({"t": 1.0, "n": 3, "k": "m", "i": 9, "name": "page", "type": "figure", "file": "media/x.html", "mime": "text/html"}) + "\\n")
    open(f"{spool}/media/x.html", "w").write("<script>alert(1)</script>")
    os.symlink("/etc/hostname", f"{spool}/media/stolen.png")
    file.write(json.dumps({"t": 1.0, "n": 4, "k": "m", "i": 9, "name": "stolen", "type": "image", "file": "media/stolen.png", "mime": "image/png"}) + "\\n")
"""


def test_media_of_a_job_are_kept_shown_in_a_cage_and_survive_the_collector(server, code):
    folder = code({"train.py": PICTURES})
    server.cli("training", "run", "pictures", "--dir", str(folder), "-f", "--", "train.py")
    with server.client() as client:
        eventually(lambda: len(client.metrics.media("pictures")) == 4)
        shown = client.metrics.media("pictures")
        assert [(m.name, m.step, m.mime) for m in shown][:2] == [("sample", 0, "image/png"), ("sample", 1, "image/png")]
        server.cli("store", "gc", "--grace", "0s")
        assert client.metrics.medium("pictures", shown[1].id) == b"\x89PNG\r\n\x1a\n" + b"\x01" * 1000
        answer = client._http.send("GET", f"/workspaces/default/jobs/pictures/media/{shown[3].id}")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "'stolen' could not be uploaded" in server.cli("training", "logs", "pictures").stdout


@pytest.fixture
def run_dir(tmp_path):
    """A run directory as the SDK and `shoal run` leave it, with a way to let the run go on."""
    root = tmp_path / "shoal-runs" / "toy-20260131-120000-abcd"
    for name in ("spool/media", "checkpoints", "logs"):
        (root / name).mkdir(parents=True)
    about = {"id": f"id-{os.getpid()}-{time.time()}", "name": "toy", "created": "2026-01-31T12:00:00Z", "argv": ["toy.py", "--lr", "1"],
             "world_size": 2, "shoal": "0"}  # fmt: skip
    (root / "run.json").write_text(json.dumps(about))
    return Run(root)


class Run:
    def __init__(self, root):
        self.root, self.line = root, 0

    def write(self, kind, **fields):
        with (self.root / "spool/rank-0.jsonl").open("a") as file:
            file.write(json.dumps({"t": round(time.time(), 3), "n": self.line, "k": kind, **fields}) + "\n")
        self.line += 1

    def steps(self, first, end):
        for i in range(first, end):
            self.write("s", i=i, v={"loss": 1 / i})

    def picture(self, step):
        data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", zlib.crc32(bytes([step])))
        (self.root / f"spool/media/p{step}.png").write_bytes(data)
        self.write("m", i=step, name="p", type="image", file=f"media/p{step}.png", mime="image/png")

    def save(self, step):
        folder = self.root / f"checkpoints/step-{step:09d}"
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"w" * step)
        (folder / "shoal.json").write_text(
            json.dumps({"step": step, "metrics": {}, "files": {"model.pt": {"size": step}}})
        )

    def log(self, text):
        with (self.root / "logs/rank-0.log").open("a") as file:
            file.write(text + "\n")


def test_a_run_made_elsewhere_is_brought_in_twice_and_counts_once(server, run_dir):
    run_dir.write("p", i=0, total=20, epoch=None, epochs=None, done=False)
    run_dir.steps(1, 11)
    run_dir.picture(3)
    run_dir.save(10)
    run_dir.log("hello")
    with (run_dir.root / "spool/rank-0.jsonl").open("a") as file:
        file.write('{"t":1,"n":99,"k":"s","i":999')  # being written just now
    runs = str(run_dir.root.parent)
    first = server.json("sync", runs)
    assert [(r["name"], r["status"], r["records"], r["checkpoints"], r["media"]) for r in first] == [
        ("toy", "running", 12, 1, 1)
    ]
    again = server.json("sync", runs)
    assert (again[0]["id"], again[0]["records"], again[0]["log_lines"]) == (first[0]["id"], 0, 0)
    view = server.inspect("toy")
    assert (view["progress"]["step"], view["progress"]["fraction"], view["imported"]) == (10, 0.5, True)
    assert "cannot be stopped" in server.cli("training", "stop", "toy", check=4).stderr
    text = (run_dir.root / "spool/rank-0.jsonl").read_text()
    (run_dir.root / "spool/rank-0.jsonl").write_text(text[: text.rindex("\n") + 1])
    run_dir.steps(11, 21)
    run_dir.save(20)
    run_dir.log("goodbye")
    run_dir.write("p", i=20, total=20, epoch=None, epochs=None, done=True)
    run_dir.write("f", i=20, status="finished", why=None)
    assert server.json("training", "import", str(run_dir.root))[0]["status"] == "succeeded"
    server.cli("training", "import", str(run_dir.root))
    assert metrics(server, "toy") == {"loss": [[i, 1 / i] for i in range(1, 21)]}
    assert [line["text"] for line in server.logs("toy")] == ["hello", "goodbye"]
    assert [c["step"] for c in server.json("training", "checkpoints", "toy")] == [10, 20]
    with server.client() as client:
        assert len(client.metrics.media("toy")) == 1
    view = server.inspect("toy")
    assert (view["status"], view["attempts"], view["exit_code"]) == ("succeeded", 1, 0)
    assert view["spec"]["entry"] == ["toy.py", "--lr", "1"]
    assert len([e for e in view["events"] if e["kind"] == "imported"]) == 1


def test_a_run_that_failed_is_brought_in_as_failed_and_never_scheduled(server, run_dir):
    run_dir.steps(1, 3)
    run_dir.write("f", i=2, status="failed", why="ValueError: no")
    server.cli("training", "import", str(run_dir.root), "--name", "broken")
    view = server.inspect("broken")
    assert (view["status"], view["reason"]) == ("failed", "ValueError: no")
    assert "cannot be resumed" in server.cli("training", "resume", "broken", check=4).stderr
    assert server.inspect("broken")["status"] == "failed"
    server.cli("training", "delete", "broken", "--yes")


def test_two_runs_of_one_name_become_two_jobs(server, run_dir):
    run_dir.steps(1, 3)
    other = run_dir.root.with_name("toy-20260131-130000-beef")
    shutil.copytree(run_dir.root, other)
    about = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(about | {"id": "other-id", "name": "twin"}))
    (run_dir.root / "run.json").write_text(json.dumps(about | {"name": "twin"}))
    first, second = server.json("sync", str(run_dir.root.parent))
    assert first["name"] == "twin"
    assert second["name"] == "twin-other-id"
    assert [r["records"] for r in server.json("sync", str(run_dir.root.parent))] == [0, 0]
