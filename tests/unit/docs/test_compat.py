"""The page of compatibility is what the manifest says, and a project at hand is run and noted."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def compat() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compat_script", ROOT / "scripts" / "compat.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_manifest_says(compat: ModuleType) -> None:
    assert compat.main(["--check"]) == 0, "run ./scripts/compat"
    assert compat.dump(json.loads(compat.MANIFEST.read_text())) == compat.MANIFEST.read_text()


def project(**changes: Any) -> dict[str, Any]:
    plain = {"name": "one", "kind": "own loop", "url": "https://example.org/me/one", "nproc": 1, "run": ["train.py"]}
    return {**plain, "before": [], "note": "", "tried": None} | changes


def test_a_project_at_hand_is_run_and_noted_and_one_that_is_not_stays_as_it_was(
    compat: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "train.py").write_text("print('trained')\n")
    (tmp_path / "one" / "prepare.py").write_text("raise SystemExit('no data | here')\n")
    runs, absent = project(), project(url="https://example.org/me/two")
    fails = project(before=[["python", "prepare.py"]])
    # The command line of its own is tested elsewhere: here, the script is run in its place.
    monkeypatch.setattr(compat.sys, "executable", sys.executable)
    real = compat.subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        return real([sys.executable, "train.py"] if "shoal.cli" in command else command, **options)

    monkeypatch.setattr(compat.subprocess, "run", run)
    for one in (runs, absent, fails):
        compat.try_project(one, tmp_path)
    assert absent["tried"] is None
    assert runs["tried"] | {"on": ""} == {"on": "", "revision": "unknown", "result": "runs", "said": ""}
    assert (fails["tried"]["result"], fails["tried"]["said"]) == ("fails", "no data | here")
    assert "`no data / here`" in compat.page([fails]) and "not run with this version" in compat.page([absent])
