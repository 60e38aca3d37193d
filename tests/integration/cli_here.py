"""The command line in the tests' own process, for tests whose subject is not that process: it saves the start of one."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from shoal.cli._output import out
from shoal.cli._session import session
from shoal.cli.main import main


@dataclass(frozen=True)
class Printed:
    stdout: str
    stderr: str


def cli(server: Any, *args: str, check: int = 0, cwd: Path | None = None) -> Printed:
    """Run `shoal ARGS` against this server; fails unless it exits with `check`."""
    printed, said = io.StringIO(), io.StringIO()
    with environment(server, cwd or server.home), redirect_stdout(printed), redirect_stderr(said):
        code = main(args)
    assert code == check, (
        f"shoal {' '.join(args)} exited with {code}, not {check}\n{printed.getvalue()}\n{said.getvalue()}"
    )
    return Printed(printed.getvalue(), said.getvalue())


def cli_json(server: Any, *args: str) -> Any:
    return json.loads(cli(server, *args, "--json").stdout)


@contextmanager
def environment(server: Any, folder: Path) -> Iterator[None]:
    """Give the command what a process of its own would have: its environment and folder, and flags nobody has set."""
    with mock.patch.dict(os.environ, server.env(), clear=True), chdir(folder):
        try:
            yield
        finally:
            out.json = out.quiet = out.wide = False
            session.url = session.workspace = session.after_dashes = None
