"""Programs that bench/store.py is compared with, if they are installed: rsync, `dvc push`, `aws s3 cp` to a local moto server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

_START_S = 60.0


class Clock(Protocol):
    def time(self, name: str, work: object) -> object: ...


def rsync(clock: Clock, source: Path, place: Path) -> None:
    """The first time, and again when nothing has changed: by its ordinary quick check, and reading everything."""
    command = ["rsync", "-a", f"{source}/", f"{place / 'rsync'}/"]
    clock.time("rsync", lambda: _run(command))
    clock.time("rsync again, unchanged", lambda: _run(command))
    clock.time("rsync --checksum again", lambda: _run([*command[:2], "--checksum", *command[2:]]))


def rsync_changes(clock: Clock, tree: Path, copies: dict[str, Path]) -> None:
    """An edited tree once more to where it was copied before; `copies` by option."""
    for option, copy in copies.items():
        command = ["rsync", "-a", *option.split(), f"{tree}/", f"{copy}/"]
        clock.time(f"rsync, 1 % changed {option}".strip(), lambda command=command: _run(command))


def dvc(clock: Clock, program: str, source: Path, place: Path) -> None:
    """`dvc add` reads and hashes, `dvc push` copies to the remote: our push does both."""
    repository = place / "dvc"
    repository.mkdir()
    shutil.copytree(source, repository / "data")
    env = os.environ | {"DVC_NO_ANALYTICS": "1"}
    _run([program, "init", "--no-scm", "-q"], cwd=repository, env=env)
    _run([program, "remote", "add", "-q", "-d", "here", str(place / "dvc-remote")], cwd=repository, env=env)
    clock.time("dvc add", lambda: _run([program, "add", "-q", "data"], cwd=repository, env=env))
    clock.time("dvc push", lambda: _run([program, "push", "-q"], cwd=repository, env=env))


def aws(clock: Clock, program: str, moto: str, source: Path) -> None:
    with _moto(moto) as url:
        env = os.environ | {
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        s3 = [program, "--endpoint-url", url, "s3"]
        _run([*s3, "mb", "s3://bench"], env=env)
        clock.time(
            "aws s3 cp", lambda: _run([*s3, "cp", "--recursive", "--quiet", str(source), "s3://bench/"], env=env)
        )


@contextmanager
def _moto(program: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], **quiet)
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _run(command: list[str], **options: object) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)
