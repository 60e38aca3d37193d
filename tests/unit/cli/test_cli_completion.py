"""Completion: what may follow the words of a command line, by the commands themselves and by the server; the shells' scripts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import wireviews as views
from clirun import Cli
from stubserver import Stub, reply

from shoal.cli.completion.complete import complete
from shoal.cli.completion.scripts import FILES, Shell, script
from shoal.testing.patience import patient


def values(*words: str) -> list[str]:
    return [value for value, _ in complete(words)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tra"], ["training"]),
        (["--url", "https://x", "tra"], ["training"]),
        (["--url="], []),
        (["training", "lo"], ["logs"]),
        (["logs", "--f"], ["--follow"]),
        (["training", "run", "--device", "c"], ["cpu", "cuda"]),
        (["training", "run", "--device", "cpu", "--acc"], ["--accels"]),
        (["init", "--template", "l"], ["lightning"]),
        (["completion", "install", ""], ["bash", "zsh", "fish"]),
        (["training", "list", "--js"], ["--json"]),
        (["training", "run", "-f", "--", "tr"], [FILES]),
        (["run", ""], [FILES]),
        (["training", "run", "--zip", ""], [FILES]),
        (["no-such-command", ""], []),
    ],
)
def test_commands_options_and_choices_are_completed(words: list[str], found: list[str]) -> None:
    assert values(*words) == found


def test_options_have_their_meaning_beside_them() -> None:
    assert ("--follow", "Print new lines until the job ends.") in complete(["training", "logs", "--"])


def test_names_come_from_the_server(stub: Stub) -> None:
    jobs = [views.job("running", name="gpt"), views.job(name="hello")]
    machine = {"name": "gpu1", "kind": "cuda", "slots_total": 8, "slots_free": 2, "state": "up"}
    stub.routes = {
        "GET /workspaces/default/jobs": reply(200, jobs),
        "GET /machines": reply(200, {"machines": [machine]}),
    }
    assert complete(["training", "logs", ""]) == [("gpt", "running"), ("hello", "succeeded")]
    assert values("logs", "h") == ["hello"], "an alias is its command"
    assert values("training", "stop", "gpt", "") == ["gpt", "hello"], "a command of several jobs goes on"
    assert values("training", "run", "--exclude", "g") == ["gpu1"]
    assert values("training", "run", "") == [FILES], "a new job has a name that no other has"


def test_profiles_come_from_the_project_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shoal.yaml").write_text("profiles: {big: {nodes: 2}, debug: {}}")
    monkeypatch.chdir(tmp_path)
    assert values("training", "run", "--profile", "") == ["big", "debug"]


def test_without_a_server_or_with_a_broken_one_there_are_no_names_and_no_errors(cli: Cli, stub: Stub) -> None:
    stub.will(reply(500, b"<html>"))
    ran = cli("completion", "candidates", "--", "dataset", "inspect", "")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_silent_server_does_not_hold_the_shell(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cli.completion.names._WAIT_S", 0.05)
    stub.will(lambda _: stub.release.wait(patient(10)) and None)
    assert values("dataset", "inspect", "") == []


def test_install_writes_the_script_and_one_line_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    (tmp_path / ".zshrc").write_text("alias ll='ls -l'")
    for _ in range(2):
        assert cli("completion", "install").code == 0
    alias, line = (tmp_path / ".zshrc").read_text().splitlines()
    assert alias == "alias ll='ls -l'" and f". {tmp_path}/.local/share/shoal/shoal.zsh" in line
    assert cli("completion", "install", "fish").code == 0
    assert (tmp_path / ".config/fish/completions/shoal.fish").exists()
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    ran = cli("completion", "install")
    assert ran.code == 2 and "shoal completion install bash" in ran.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_accepts_its_script(shell: Shell, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, "shoal"))
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_by_its_script(tmp_path: Path) -> None:
    program = tmp_path / "shoal"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m shoal.cli "$@"\n')
    program.chmod(0o755)
    (tmp_path / "data.csv").touch()
    lines = f"""
        PATH={tmp_path}:$PATH; cd {tmp_path}
        {script("bash", "shoal")}
        ask() {{ COMP_WORDS=(shoal "$@"); COMP_CWORD=$#; _shoal_complete; echo "${{COMPREPLY[*]}}"; }}
        ask training insp
        ask run da
    """
    ran = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["inspect", "data.csv"], ran.stderr
