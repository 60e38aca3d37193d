"""Runs a piece of JavaScript that imports the console's modules, and returns what it prints as JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shoal.server.web.render import STATIC

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def run_node(folder: Path, script: str, *, zone: str = "UTC", instead: dict[str, str] | None = None) -> Any:
    """Run a script in which `./charts.js` and its neighbours can be imported. `instead`: module → its text, for those that need a page."""
    shutil.copytree(STATIC / "js", folder / "js", dirs_exist_ok=True)
    (folder / "js/package.json").write_text('{"type": "module"}')  # what a browser's script tag says
    for name, text in ((instead or {}) | {"test.js": script}).items():
        (folder / "js" / name).write_text(text)
    done = subprocess.run(
        ["node", "js/test.js"], cwd=folder, capture_output=True, text=True, timeout=120, env=os.environ | {"TZ": zone}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
