"""Description of the machine a job runs on, without starting or importing anything."""

import json
import platform
import sys

from shoal.agent.node import inventory


def test_packages_are_read_from_the_names_of_their_folders(tmp_path):
    own, runtime = tmp_path / "own", tmp_path / "runtime"
    for folder, names in (
        (own, ["numpy-2.1.0.dist-info", "my_pkg-0.1.dev3+g1a2b.dist-info"]),
        (runtime, ["numpy-1.26.4.dist-info", "old-1.0-py3.11.egg-info", "torch", "nonsense.dist-info", "six.py"]),
    ):
        folder.mkdir()
        for name in names:
            (folder / name).mkdir()
    found = inventory.packages([own, runtime, tmp_path / "gone"])
    assert found == {"my_pkg": "0.1.dev3+g1a2b", "numpy": "2.1.0", "old": "1.0"}
    assert list(found) == sorted(found)


def test_a_layered_environment_comes_before_the_runtime(tmp_path):
    site = tmp_path / "venv/lib/python3.11/site-packages"
    (site / "pydantic-0.0.1.dist-info").mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    told = json.loads(inventory.record(str(tmp_path / "venv/bin/python"), sys.executable))
    assert told["env"]["packages"]["pydantic"] == "0.0.1"
    assert told["t"] > 1e9


def test_this_interpreter_tells_its_version_and_what_it_has():
    told = json.loads(inventory.record(sys.executable, sys.executable))["env"]
    assert told["python"] == platform.python_version()
    assert "pytest" in told["packages"]
