"""`shoal doctor` of the installation and its server, and `doctor gpu` on made-up machines: problems, fixes and exit codes."""

import json
import time

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply

from shoal import __version__
from shoal.agent.devices import inventory
from shoal.cli import doctor
from shoal.testing.fake_devices import Box, build_nvml, gpu


@pytest.fixture
def box(tmp_path, monkeypatch):
    made = Box(tmp_path)
    scan = inventory.scan
    monkeypatch.setattr(inventory, "scan", lambda: scan(made.root, made.env, 60.0))
    return made


def test_a_machine_without_gpus_is_fine(box):
    report = doctor.examine(tensors=True)
    assert (report["kind"], report["devices"], report["problems"]) == ("cpu", [], [])


def test_gpus_are_reported_with_their_problems(box, tmp_path):
    box.nvml(build_nvml(tmp_path), gpu(), gpu(error=15))
    report = doctor.examine(tensors=False)
    assert [(d["label"], d.get("problem"), d["tensor"]) for d in report["devices"]] == [
        ("GPU 0", None, None),
        ("GPU 1", "GPU is lost", None),
    ]
    assert report["problems"] == ["GPU 1: GPU is lost"]


def test_a_torch_that_cannot_use_the_gpu_is_a_problem(box, tmp_path):
    """The torch of the tests is a CPU build, or finds no driver: either way the tensor fails with torch's own words."""
    box.nvml(build_nvml(tmp_path), gpu())
    report = doctor.examine(tensors=True)
    [problem] = report["problems"]
    assert problem.startswith("GPU 0: ") and ("CUDA" in problem or "NVIDIA" in problem)


HEALTH = {"status": "ok", "version": __version__, "health": "ok", "problems": []}


def found(cli: Cli, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    ran = cli("doctor", "--client", "--json", *words)
    return ran.code, {one["name"]: one for one in json.loads(ran.out)}


def test_all_is_well_with_a_server_that_answers(cli: Cli, stub: Stub, monkeypatch):
    monkeypatch.setattr("shoal.cli.installation_checks._SLOW_S", 60.0)
    user = {"id": "usr_1", "email": "ada@example.org", "name": "", "is_admin": False, "created_at": views.CREATED}
    stub.routes = {
        "GET /health": reply(200, HEALTH | {"clock": {"now": time.time()}}),
        "GET /auth/me": reply(200, user),
    }
    code, seen = found(cli)
    assert code == 0 and seen["sign-in"]["text"].startswith("ada@example.org")
    assert {seen[name]["state"] for name in ("server", "versions", "clock", "sign-in", "home")} == {"ok"}


def test_each_problem_has_its_fix(cli: Cli, stub: Stub, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://10.0.0.1:3128")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    refused = {"error": {"code": "not_signed_in", "message": "This key is not known.", "hint": "shoal login"}}
    late = {"name": "scheduler", "state": "late", "since_s": 90.0}
    sick = HEALTH | {"version": "9.0", "problems": [late], "clock": {"now": time.time() - 600}}
    stub.routes = {"GET /health": reply(200, sick), "GET /auth/me": reply(401, refused)}
    code, seen = found(cli)
    assert code == 1
    assert f"pip install --extra-index-url {stub.url}/simple/" in seen["versions"]["fix"]
    assert "600 s ahead of" in seen["clock"]["text"] and "timedatectl" in seen["clock"]["fix"]
    assert seen["server"]["text"] == "scheduler is late for 90 s" and "server doctor" in seen["server"]["fix"]
    assert "SHOAL_API_KEY" in seen["sign-in"]["text"] and seen["sign-in"]["fix"]


def test_a_server_that_does_not_answer_is_named_with_where_its_address_is_from(cli: Cli):
    code, seen = found(cli, "--url", "http://127.0.0.1:1")
    assert code == 1 and "from --url" in seen["server"]["text"] and seen["server"]["fix"]


def test_a_home_that_cannot_be_written_is_an_error(cli: Cli, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "file"))
    code, seen = found(cli)
    assert code == 1 and "Set SHOAL_HOME" in seen["home"]["fix"]


def test_without_a_server_nothing_is_started(cli: Cli, home):
    code, seen = found(cli)
    assert code == 0 and "a private one starts at the first job" in seen["server"]["text"]
    assert not home.exists()


def test_devices_and_sandbox_are_examined_too(cli: Cli, box, tmp_path):
    box.nvml(build_nvml(tmp_path), gpu(), gpu(error=15))
    ran = cli("doctor")
    assert ran.code == 1 and "GPU 1: GPU is lost" in ran.out and "→ shoal doctor gpu" in ran.out
    assert "sandbox" in ran.out
