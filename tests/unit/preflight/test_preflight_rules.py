"""Parts of a preflight that need no torch: rules, findings from exceptions, memory and disk that a job needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.preflight import launch
from shoal.preflight.ends import disk_needed, memory_needed
from shoal.preflight.probe import PHASES, STEPS
from shoal.preflight.rules import RULES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "preflight.md"


def tried(folder: Path, text: str, *args: str, **asked: Any) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """A script without torch, below the launcher, in a process of its own."""
    (folder / "train.py").write_text(text)
    report = folder / "report.json"
    env = {"PATH": "/usr/bin:/bin", launch.VARIABLE: json.dumps({"report": str(report), **asked})}
    words = [sys.executable, "-u", launch.__file__, "train.py", *args]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    return json.loads(report.read_text()), done


def test_every_rule_is_on_the_page_that_explains_them() -> None:
    text = PAGE.read_text()
    assert [rule for rule in RULES if f"`{rule}`" not in text] == []
    assert all(rule.why and rule.fix and rule.severity in ("error", "warning", "hint") for rule in RULES.values())


def test_a_script_runs_as_it_would_by_itself(tmp_path: Path) -> None:
    text = "import sys, pickle\nclass A: pass\nprint(__name__, sys.argv, sys.path[0], __file__)\npickle.dumps(A())\nprint('é')"
    report, done = tried(tmp_path, text, "--x", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"__main__ ['train.py', '--x', 'a b'] {tmp_path} {tmp_path / 'train.py'}"
    assert report["complete"] and report["findings"] == [] and report["steps"] == 0


@pytest.mark.parametrize(
    ("text", "rule", "line", "says"),
    [
        ("x = 1\nimport not_there", "import", 2, "No module named 'not_there'"),
        ("def f():\n    open('none.csv')\nf()", "file", 2, "none.csv"),
        ("raise RuntimeError('CUDA out of memory. Tried')", "memory", 1, "out of memory"),
        ("b'x' * (1 << 60)", "memory", 1, "MemoryError"),
        ("x = {}\nx['k']", "crash", 2, "KeyError: 'k'"),
        ("import sys\nsys.exit('no such mode')", "crash", 2, "exit code 1: no such mode"),
        ("import sys\nsys.exit(3)", "crash", 2, "exit code 3"),
        ("import argparse\np = argparse.ArgumentParser()\np.parse_args(['--no'])", "arguments", 3, "--no"),
        ("def f(:\n", "crash", 1, "SyntaxError"),
    ],
)
def test_an_exception_is_a_finding_at_the_scripts_own_line(
    text: str, rule: str, line: int, says: str, tmp_path: Path
) -> None:
    report, done = tried(tmp_path, text)
    [finding] = report["findings"]
    assert (finding["rule"], finding["line"]) == (rule, line) and says in finding["message"]
    assert done.returncode != 0 and "launch.py" not in done.stderr


def test_a_script_that_ends_well_by_exit_has_no_finding(tmp_path: Path) -> None:
    report, done = tried(tmp_path, "import sys\nsys.exit(0)")
    assert report["complete"] and report["findings"] == [] and done.returncode == 0


def test_one_that_gets_nowhere_is_ended_and_told_with_its_line(tmp_path: Path) -> None:
    text = "import time\ntry:\n    while True:\n        time.sleep(0.01)\nfinally:\n    print('cleaned up')"
    report, done = tried(tmp_path, text, limit_s=0.5)
    [finding] = report["findings"]
    assert (finding["rule"], finding["path"], finding["line"]) == ("slow-start", "train.py", 4)
    assert done.returncode == 0 and "cleaned up" in done.stdout


def test_memory_is_that_of_all_workers_of_a_node_or_of_one_gpu() -> None:
    facts = {"peak_bytes": 1000, "gradient_bytes": 100, "on": "machine"}
    assert memory_needed(facts, workers=1, accels=1) == 1000
    assert memory_needed(facts, workers=8, accels=4) == 4 * 1100
    assert memory_needed(facts | {"on": "GPU"}, workers=8, accels=4) == 1100
    assert memory_needed({}, workers=8, accels=4) == 0


def test_disk_is_that_of_the_checkpoints_kept_and_of_the_one_being_written() -> None:
    assert disk_needed(10, None) == 20 and disk_needed(10, 3) == 40
    assert STEPS >= 3 and PHASES[-1] == "load"
