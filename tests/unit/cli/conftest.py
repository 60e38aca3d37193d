"""Fixtures of the command line's tests: a home of their own, a scripted server, and the CLI in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))

from clirun import Cli, Ran
from stubserver import Stub, running_stub

from shoal.cli.main import main
from shoal.cli.shared.output import out
from shoal.cli.shared.session import session


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("SHOAL_URL", "SHOAL_API_KEY", "SHOAL_WORKSPACE", "SHOAL_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHOAL_NO_AUTOSTART", "1")
    yield tmp_path / "home"
    out.json = out.quiet = out.wide = False
    session.url = session.workspace = session.after_dashes = None


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    with running_stub() as made:
        monkeypatch.setenv("SHOAL_URL", made.url)
        monkeypatch.setenv("SHOAL_API_KEY", "key-1")
        yield made


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], parse_fast: None) -> Cli:
    def run(*tokens: str) -> Ran:
        capsys.readouterr()
        code = main(tokens)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run
