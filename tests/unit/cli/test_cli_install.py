"""`shoal server install`: the unit file, what is run with it, and machines without systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from clirun import Cli

from shoal.cli.server import install
from shoal.core.settings import Layout


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with systemd, as far as the command can see; returns the file with what was run."""
    tools, ran = tmp_path / "bin", tmp_path / "ran"
    tools.mkdir()
    for name in ("systemctl", "loginctl"):
        tool = tools / name
        tool.write_text(
            f'#!/bin/sh\necho {name} "$@" >> "{ran}"\n[ ! -e "{tmp_path}/fails" ] || {{ echo broken >&2; exit 1; }}\n'
        )
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(install, "RUNS_SYSTEMD", tmp_path)
    monkeypatch.setattr(install, "SYSTEM_UNITS", tmp_path / "units")
    return ran


def test_the_unit_is_what_systemd_accepts_whatever_the_paths_are(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for is_root in (True, False):
        odd = Layout(Path('/srv/my $HOME 5%h "quoted" back\\slash'))
        text = install.unit(odd, "shoal", is_root=is_root, environment={"PATH": "/usr/bin:/a %n dir", "SECRET": "x"})
        assert "SECRET" not in text and "KillMode=process" in text and "OOMPolicy=continue" in text
        path = tmp_path / "shoal.service"
        path.write_text(text)
        manager = "--system" if is_root else "--user"
        done = subprocess.run(
            ["systemd-analyze", manager, "verify", str(path)], check=False, capture_output=True, text=True
        )
        ours = [line for line in done.stderr.splitlines() if "shoal.service" in line]
        assert not ours, done.stderr


def test_what_is_written_stays_as_it_is() -> None:
    """systemd expands percent signs everywhere, and dollar signs only in commands."""
    assert install.quoted('a "b" $c 5% \\') == '"a \\"b\\" $c 5%% \\\\"'
    assert install.quoted("a $b", in_command=True) == '"a $$b"'


def test_it_installs_enables_and_starts_the_service(cli: Cli, systemctl: Path, tmp_path: Path) -> None:
    is_root = os.geteuid() == 0
    ran = cli("server", "install")
    assert ran.code == 0, ran.err
    path = tmp_path / ("units" if is_root else "config/systemd/user") / "shoal.service"
    assert f'Environment="SHOAL_HOME={os.environ["SHOAL_HOME"]}"' in path.read_text().splitlines()
    manager = "systemctl" if is_root else "systemctl --user"
    did = systemctl.read_text().splitlines()
    assert did[:3] == [
        f"{manager} daemon-reload",
        f"{manager} enable shoal.service",
        f"{manager} restart shoal.service",
    ]
    systemctl.unlink()
    assert cli("server", "install", "--no-start").code == 0
    assert not any("restart" in line for line in systemctl.read_text().splitlines())


def test_it_replaces_no_service_of_another_directory(
    cli: Cli, systemctl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("server", "install", "--no-start").code == 0
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "other"))
    ran = cli("server", "install")
    assert ran.code == 4 and "--name shoal-2" in ran.err
    assert cli("server", "install", "--name", "shoal-2", "--no-start").code == 0


def test_an_error_of_systemd_is_shown(cli: Cli, systemctl: Path, tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    ran = cli("server", "install")
    assert ran.code == 4 and "broken" in ran.err and "journalctl" in ran.err


def test_without_systemd_nothing_is_written_and_the_command_is_named(
    cli: Cli, systemctl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "RUNS_SYSTEMD", tmp_path / "nowhere")
    ran = cli("server", "install")
    assert ran.code == 4 and "server start --foreground" in ran.err
    assert not (tmp_path / "units").exists() and not (tmp_path / "config").exists() and not systemctl.exists()
    shown = cli("server", "install", "--print-only")
    assert shown.code == 0 and shown.out.startswith("# Written by") and "ExecStart=" in shown.out
