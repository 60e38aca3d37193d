"""Notebooks as real jobs: the awkward ones that can run do, with metrics; errors name their cell; one comes from a URL."""

import http.server
import json
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit/notebooks"))
from notebook_corpus import AWKWARD, KEPT, Awkward, C

METRICS = C(
    "import sys, shoal\nrun = shoal.init(parallel='none')\n"
    "for step in range(3):\n    run.step(loss=1 / (step + 1))\nrun.finish()\nprint('words', sys.argv[1:])",
    KEPT,
)
RUN = [name for name, awkward in AWKWARD.items() if awkward.prints is not None and awkward.data is None]


def test_the_awkward_ones_run_as_jobs_with_metrics(server, tmp_path):
    for name in RUN:
        (tmp_path / f"{name}.ipynb").write_bytes(Awkward([*AWKWARD[name].cells, METRICS]).bytes())
        server.cli("training", "run", name, "--notebook", str(tmp_path / f"{name}.ipynb"), "--", "--lr", "3e-4")
    with server.client() as client:
        for name in RUN:
            job = client.jobs.wait(name, timeout_s=120)
            lines = [line.text for line in client.jobs.lines(name)]
            assert job.status == "succeeded", (name, job.reason, lines)
            wanted = [*AWKWARD[name].prints, "words ['--lr', '3e-4']"]
            assert [line for line in lines if line in wanted] == wanted, (name, lines)
            (told,) = [(m.count, m.max, m.last) for m in client.metrics.names(name) if m.name == "loss"]
            assert told == (3, 1.0, pytest.approx(1 / 3)), name
    receipt = server.json("notebook", "receipt", "shell")
    assert [cell["fate"] for cell in receipt["cells"]] == [cell.fate for cell in AWKWARD["shell"].cells] + ["kept"]


def test_an_error_in_the_job_names_the_cell(server, tmp_path):
    (tmp_path / "bad.ipynb").write_bytes(Awkward([C("x = [1]", KEPT), C("y = 1\n\nx[7]", KEPT)]).bytes())
    server.cli(
        "training", "run", "bad", "--notebook", str(tmp_path / "bad.ipynb"), "--max-restarts", "0", "-f", check=1
    )
    assert server.inspect("bad")["reason"].endswith("IndexError: list index out of range")
    assert "In cell 2, line 3, of bad.ipynb." in [record["text"] for record in server.logs("bad")]


def test_a_private_server_fetches_from_a_jupyter_nearby(server, tmp_path):
    seen = []

    class Jupyter(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers.get("Authorization")))
            body = Awkward([C("print('fetched')", KEPT)]).bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jupyter) as web:
        threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_port}/lab/tree/deep/net.ipynb?token=s3cret"
        ran = server.cli("training", "run", "from-url", "--notebook", url, "-f")
        web.shutdown()
    assert ran.stdout.splitlines() == ["fetched"] and seen == [("/files/deep/net.ipynb", "token s3cret")]
    view = server.inspect("from-url")
    assert view["source"]["kind"] == "notebook" and "s3cret" not in json.dumps(view)
