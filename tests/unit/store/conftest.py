"""Shared by the store's tests: a tree of mixed files, and a disk that is quickly full."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def mixed_tree(tmp_path: Path) -> Path:
    """A few large files, many small ones, text, an executable, an empty file, nested folders."""
    root = tmp_path / "tree"
    noise = random.Random(7)
    for n in range(60):
        path = root / "small" / f"{n % 5}" / f"{n}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise.randbytes(n * 100))
    (root / "text.jsonl").write_bytes(b'{"text": "hello world"}\n' * 60_000)
    (root / "large.bin").write_bytes(noise.randbytes(5_000_000))
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk; the temporary folder of a run may be in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "shoal-test", place], capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)
