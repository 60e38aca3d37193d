"""An engine of another package, from the command line: added with its own options, and a job runs on it."""

import json

import pytest

from shoal.testing.engine_package import write_engine_package
from shoal.testing.live import live_server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(write_engine_package(tmp_path_factory.mktemp("packages"))))
        with live_server(tmp_path_factory.mktemp("home"), slots=1) as server:
            yield server


def test_it_is_added_runs_a_job_and_is_removed(server, code, tmp_path):
    assert "--rack" in server.cli("engine", "add", "--help", process=True).stdout
    words = ["engine", "add", "acme", "--name", "hall", "--rack", str(tmp_path / "rack")]
    refused = server.cli(*words, "--partition", "gpu", process=True, check=2)
    assert "--partition is not an option of a cluster of kind 'acme'" in refused.stderr
    added = json.loads(server.cli(*words, "--set", "slots=1", "--json", process=True).stdout)
    assert (added["name"], added["kind"], added["machines"], added["slots"]) == ("hall", "acme", 1, 1)
    folder = code({"where.py": "import os; print('here:', os.getcwd())"})
    server.cli("training", "run", "far", "--dir", str(folder), "--exclude", "local", "--follow", "--", "where.py")
    assert any(str(tmp_path / "rack") in line["text"] for line in server.logs("far"))
    [attempt] = server.inspect("far")["attempt_list"]
    assert [node["machine"] for node in attempt["nodes"]] == ["hall:rack"]
    server.cli("engine", "remove", "hall")
    assert server.json("engine", "list") == []
