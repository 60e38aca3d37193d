"""A package's own build code sees nothing of the server and writes nowhere but into its environment."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.agent.sandbox.mounts import Mode, Walls, choose
from shoal.agent.workers.environment import Builder

PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """
import glob, os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    seen, written = {}, []
    for path in READ:
        try:
            seen[path] = open(path).read()
        except OSError as error:
            seen[path] = type(error).__name__
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            seen[path] = "leaked" if MARK in open(path).read() else ""
        except OSError:
            pass
    for path in WRITE:
        try:
            open(path, "w").write("x")
            written.append(path)
        except OSError:
            pass
    name = "probe-1.0-py3-none-any.whl"
    info = {"METADATA": "Metadata-Version: 2.1\\nName: probe\\nVersion: 1.0\\n", "WHEEL":
            "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n", "RECORD": ""}
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("probe.py", f"SEEN = {seen!r}\\nWRITTEN = {written!r}\\nUID = {os.getuid()}\\n")
        for file, text in info.items():
            wheel.writestr(f"probe-1.0.dist-info/{file}", text)
    return name
"""


@pytest.fixture
def mode(tmp_path: Path) -> Mode:
    found = choose(tmp_path / "probe")
    if found is not Mode.BWRAP_PID:
        pytest.skip("bubblewrap with a pid namespace does not work here")
    return found


def test_a_build_backend_reads_no_secret_and_writes_only_into_its_environment(tmp_path: Path, mode: Mode) -> None:
    server, nodes, cache = tmp_path / "server", tmp_path / "nodes", tmp_path / "cache"
    source, other = nodes / "att_1.0" / "source", nodes / "att_2.0"
    for folder in (server, source / "pkg", other, cache / "envs" / "theirs"):
        folder.mkdir(parents=True)
    secrets = [server / "secret.key", server / "shoal.db", other / "launch.json", nodes / "att_1.0" / "launch.json"]
    for file in secrets:
        file.write_text("leaked")
    writes = [cache / "planted", cache / "envs/theirs/x", nodes / "att_1.0/x", tmp_path / "x", Path.home() / ".planted"]
    mark = f"MARK_{os.getpid()}"
    begin = f"READ, WRITE, MARK = {[str(p) for p in secrets]!r}, {[str(p) for p in writes]!r}, {mark!r}\n"
    (source / "pkg" / "backend.py").write_text(begin + BACKEND)
    (source / "pkg" / "pyproject.toml").write_text(PYPROJECT)
    (source / "requirements.txt").write_text("./pkg\n")
    (source / "venv.py").write_text("raise SystemExit('a module of the source ran in place of venv')\n")
    (source / "pip.py").write_text("raise SystemExit('a module of the source ran in place of pip')\n")
    said: list[str] = []
    walls = Walls(mode, [server, nodes, nodes / "att_1.0" / "launch.json"], [nodes / "att_1.0", cache])
    builder = Builder(cache, sys.executable, said.append, lambda: False, walls=walls, pip_cache="w")
    with subprocess.Popen(["sleep", "600"], env={"X": mark}) as neighbour:
        try:
            python = builder.interpreter(source, {**os.environ, "PIP_NO_INDEX": "1"}, "k")
        finally:
            neighbour.kill()
    show = "import probe; print((probe.SEEN, probe.WRITTEN))"
    done = subprocess.run([python, "-c", show], capture_output=True, text=True, check=True, cwd="/")
    seen, written = ast.literal_eval(done.stdout)
    assert "leaked" not in seen.values(), seen
    assert len(seen) >= len(secrets)
    assert written == []
    assert not any(path.exists() for path in writes)


def test_without_a_sandbox_a_build_works_all_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    (source / "pkg" / "backend.py").write_text("READ, WRITE, MARK = [], [], 'nothing'\n" + BACKEND)
    (source / "pkg" / "pyproject.toml").write_text(PYPROJECT)
    (source / "requirements.txt").write_text("./pkg\n")
    python = Builder(tmp_path / "cache", sys.executable, print, lambda: False).interpreter(
        source, {**os.environ, "PIP_NO_INDEX": "1"}, "k"
    )
    assert subprocess.run([python, "-c", "import probe"], cwd="/", check=False).returncode == 0
