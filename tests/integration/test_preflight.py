"""Faults planted in a good job are found by a preflight, each at its line and alone; good jobs of many kinds have no finding."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from preflight_plants import PLANTS, UNUSED_IN_DDP
from preflight_scripts import GOOD, STUBBORN, clean_jobs

from shoal.check.job_facts import JobFacts
from shoal.check.runner import check
from shoal.check.source import Source
from shoal.testing.patience import patient

pytestmark = pytest.mark.torch
HOST = Path(__file__).parent / "preflight_host.py"
CLEAN = clean_jobs()


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """All of them in one process and its forks: name → its folder, afterwards."""
    root = tmp_path_factory.mktemp("preflights")
    cases = {name: (plant.text, plant.args, plant.asked) for name, plant in PLANTS.items()}
    cases |= {name: (text, (), {}) for name, text in CLEAN.items()}
    cases |= {"stubborn": (STUBBORN, (), {}), "DDP": (UNUSED_IN_DDP, (), {"nodes": 2})}
    folders = {}
    for number, (name, (text, args, asked)) in enumerate(cases.items()):
        folder = folders[name] = root / f"{number:02}"
        if isinstance(text, Path):
            shutil.copytree(text, folder / "code")
        else:
            (folder / "code").mkdir(parents=True)
            (folder / "code" / "train.py").write_text(text)
        (folder / "case.json").write_text(json.dumps({"args": args, "asked": asked}))
    subprocess.run([sys.executable, HOST, root], check=True, timeout=patient(280))
    return folders


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_at_its_line_and_nothing_else_is(name, tried):
    plant, report = PLANTS[name], report_of(tried[name])
    log = (tried[name] / "log").read_text()
    assert [f["rule"] for f in report["findings"]] == [plant.rule], f"{report}\n{log}"
    [finding] = report["findings"]
    assert report["complete"] and finding["message"] and finding["why"] and finding["fix"]
    if plant.at:
        assert finding["path"] == "train.py" and plant.at in plant.text.splitlines()[finding["line"] - 1], finding
    else:
        assert finding["line"] is None


def test_those_that_can_be_seen_without_running_are_found_by_the_check(tmp_path):
    for name, plant in PLANTS.items():
        (tmp_path / "train.py").write_text(plant.text)
        found = check(Source(tmp_path, ["train.py"]), "train.py", JobFacts(args=plant.args)).findings
        assert bool([f for f in found if f.severity != "hint"]) == plant.checked, (name, found)


@pytest.mark.parametrize("name", CLEAN)
def test_nor_does_the_check_find_anything_in_a_good_job(name, tmp_path):
    root = CLEAN[name]
    if isinstance(root, str):
        (tmp_path / "train.py").write_text(root)
        root = tmp_path
    source = Source(root, [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()])
    assert check(source, "train.py", JobFacts(args=(), datasets=frozenset())).findings == []


def test_there_are_as_many_faults_and_good_jobs_as_we_say():
    assert len({plant.text + str(plant.args) + str(plant.asked) for plant in PLANTS.values()}) == len(PLANTS) >= 14
    assert len(CLEAN) >= 6


@pytest.mark.parametrize("name", CLEAN)
def test_a_good_job_has_no_finding(name, tried):
    report, log = report_of(tried[name]), (tried[name] / "log").read_text()
    assert report["complete"] and report["findings"] == [], f"{report}\n{log}"
    assert {"import", "forward", "backward", "step", "load"} <= set(report["phases"]), f"{report}\n{log}"
    assert ("data" in report["phases"]) == (name != "DDP without a loader")
    assert report["steps"] >= 4 and report["facts"]["step_s"] > 0 and not report["facts"].get("troubles"), report
    assert "Traceback" not in log
    assert report["facts"]["memory_needed"] < report["facts"]["limit_bytes"]
    assert report["facts"]["disk_needed"] < report["facts"]["disk_free"]


@pytest.mark.parametrize("name", ["plain loop", "accumulates", "Hugging Face with the SDK"])
def test_an_evaluation_and_a_checkpoint_of_its_own_are_reached(name, tried):
    report = report_of(tried[name])
    assert {"evaluation", "save"} <= set(report["phases"]), report


def test_weights_nobody_uses_are_an_error_where_ddp_would_end_over_them(tried):
    [finding] = report_of(tried["DDP"])["findings"]
    assert (finding["rule"], finding["severity"]) == ("unused-parameters", "error")
    assert "spare.weight, spare.bias are without a gradient" in finding["message"]


def test_a_script_that_does_not_let_itself_be_stopped_is_ended(tried):
    report = report_of(tried["stubborn"])
    assert report["complete"] and report["findings"] == [] and "load" in report["phases"]
    assert "Done" in (tried["stubborn"] / "log").read_text()


def test_the_number_of_steps_is_read_off_the_arguments(tried):
    assert report_of(tried["plain loop"])["facts"]["total_steps"] == 20 * 512 // 16
    assert report_of(tried["text"])["facts"]["total_steps"] == 3000
    assert GOOD.count("default=20") == 1


def test_nothing_is_left_in_the_temporary_folder(tried):
    for name, folder in tried.items():
        assert list((folder / "tmp").iterdir()) == [], name
