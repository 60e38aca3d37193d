"""Help, speed, global options and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clirun import Cli
from stubserver import Stub, reply

from shoal.cli.main import app, main
from shoal.core.errors import BY_CODE
from shoal.testing.each import check_each

HEAVY = ("torch", "fastapi", "sqlalchemy", "httpx", "pydantic", "blake3", "zstandard", "psutil", "asyncio")


def test_help_imports_nothing_heavy() -> None:
    lines = [["--version"], [], ["--help"], ["training", "--help"], ["training", "run", "--help"]]
    code = (
        "import sys; from shoal.cli.main import main\n"
        f"for line in {lines!r}:\n"
        f"    assert main(line) == 0, line\n"
        f"    loaded = [m for m in {HEAVY!r} if m in sys.modules]; assert not loaded, (line, loaded)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_arguments_it_shows_four_first_commands(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 0
    assert ran.out.count("\n  shoal ") == 4


def every_command(parent: object = app, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, sub in parent.resolved_commands().items():  # type: ignore[attr-defined]
        if name.startswith("-") or not sub.show:
            continue
        below = every_command(sub, (*path, name))
        found += below or [(*path, name)]
    return found


def test_every_command_has_help_with_real_examples(cli: Cli) -> None:
    def check(command: tuple[str, ...]) -> None:
        ran = cli(*command, "--help")
        assert ran.code == 0
        assert f"shoal {' '.join(command)}" in ran.out.partition("For example:")[2]
        assert "--json" in ran.out
        assert all(len(line) <= 80 for line in ran.out.splitlines())

    check_each(every_command(), check)


def test_help_shows_the_name_it_was_called_by(tmp_path: Path) -> None:
    alias = tmp_path / "flexai"
    alias.write_text(f"#!{sys.executable}\nimport sys\nfrom shoal.cli.main import main\nsys.exit(main())\n")
    alias.chmod(0o755)
    done = subprocess.run([alias, "training", "run", "--help"], capture_output=True, text=True)
    assert done.stdout.startswith("Usage: flexai training run")


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (["traning"], 'Did you mean "training"?'),
        (["training", "rnu"], 'Did you mean "run"?'),
        (["training", "run", "x", "--datset", "d", "--", "t.py"], "Unknown option --datset. Did you mean --dataset?"),
        (["training", "run", "x", "--affinity", "a", "--", "t.py"], "Unknown option --affinity."),
        (["training", "run"], "NAME"),
        (["training", "run", "x", "--accels", "two", "--", "t.py"], "two"),
        (["training", "run", "x", "--nodes", "0", "--", "t.py"], "at least one node"),
        (["training", "run", "x", "--accels", "0", "--", "t.py"], "accels"),
        (["training", "run", "a b", "--", "t.py"], "not a usable job name"),
        (["training", "run", "x", "--time-limit", "soon", "--", "t.py"], "--time-limit"),
        (["training", "run", "x", "--env", "RANK=1", "--", "t.py"], "RANK is set by Shoal"),
        (["training", "run", "x", "--env", "A=1", "--secret", "A=s", "--", "t.py"], "both --env and --secret"),
        (["training", "run", "x", "--zip", "a.zip", "--dir", ".", "--", "t.py"], "cannot be combined"),
        (["training", "list", "--status", "sleeping"], "sleeping"),
        (["training", "stop"], "Name at least one job"),
        (["training", "list", "--url", "nonsense"], "not a server address"),
        (["key", "create", "ci", "--expires", "never"], "--expires"),
        (["secret", "create", "s"], "no terminal"),
        (["workspace", "delete", "w"], "--yes"),
    ],
)
def test_bad_usage_is_one_line_a_hint_and_exit_code_2(cli: Cli, tokens: list[str], told: str) -> None:
    ran = cli(*tokens)
    assert ran.code == 2
    assert ran.out == ""
    first, *rest = ran.err.splitlines()
    assert first.startswith("error: ")
    assert told in first
    assert all(line.startswith("hint: ") for line in rest)


ORIGINS = dict.fromkeys(("forbidden", "key_expired", "not_signed_in"), " The key is from SHOAL_API_KEY.")
ORIGINS["unreachable"] = " The address is from SHOAL_URL."


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_error_of_the_server_ends_with_its_message_hint_and_exit_code(
    cli: Cli, stub: Stub, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.client._http.PAUSES_S", (0.01,))
    monkeypatch.setenv("SHOAL_PATIENCE_S", "0")
    cls = BY_CODE[code]
    stub.will(reply(cls.http_status, cls("What went wrong.", hint="what to do").to_wire()))
    ran = cli("training", "inspect", "x")
    origin = ORIGINS.get(code, "")
    assert (ran.code, ran.err) == (cls.exit_code, f"error: What went wrong.{origin}\nhint: what to do\n")


def test_no_server_and_no_leave_to_start_one_is_exit_code_6(cli: Cli) -> None:
    ran = cli("training", "list")
    assert ran.code == 6
    assert ran.err.endswith("hint: Start it: shoal server start\n")


def test_an_unexpected_exception_leaves_one_line_and_a_crash_file(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash() -> None:
        raise ZeroDivisionError("secret-value")

    monkeypatch.setattr("shoal.cli.machine.app.connect", crash)
    ran = cli("machine", "list")
    assert ran.code == 70
    assert "secret-value" not in ran.err
    assert "Traceback" not in ran.err
    path = Path(ran.err.rpartition(" ")[2].strip())
    assert path.is_relative_to(home)
    assert "ZeroDivisionError" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    monkeypatch.setenv("SHOAL_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["machine", "list"])


def test_interruption_is_exit_code_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.cli.machine.app.connect", interrupt)
    assert cli("machine", "list").code == 130


def test_a_reader_that_leaves_early_is_no_error(stub: Stub) -> None:
    machine = {"name": "m", "kind": "cpu", "slots_total": 1, "slots_free": 1}
    stub.will(reply(body={"machines": [machine] * 20_000}), reply(body=[]))
    command = f"{sys.executable} -m shoal.cli machine list | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.startswith("NAME")
    assert done.stderr == ""


@pytest.mark.parametrize(
    "tokens",
    [
        ["machine", "list", "--json", "--url", "URL", "-w", "vision", "-q"],
        ["--json", "--url", "URL", "--workspace", "vision", "--quiet", "machine", "list"],
        ["--url=URL", "machine", "--json", "list"],
    ],
)
def test_global_options_are_taken_anywhere(
    cli: Cli, stub: Stub, monkeypatch: pytest.MonkeyPatch, tokens: list[str]
) -> None:
    monkeypatch.setenv("SHOAL_URL", "http://127.0.0.1:9")
    stub.will(reply(body={"machines": []}), reply(body=[]))
    ran = cli(*(token.replace("URL", stub.url) for token in tokens))
    assert (ran.code, ran.out) == (0, '{\n  "machines": [],\n  "leases": []\n}\n')


def test_an_error_names_where_the_wrong_address_or_key_came_from(
    cli: Cli, stub: Stub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.client._http.PAUSES_S", (0.01,))
    stub.routes["GET /workspaces/default/jobs"] = reply(401, {"error": {"code": "not_signed_in", "message": "No."}})
    assert "The key is from SHOAL_API_KEY." in cli("training", "list").err
    monkeypatch.delenv("SHOAL_API_KEY")
    assert "The key is from" not in cli("training", "list").err
    home.mkdir()
    (home / "client.json").write_text(json.dumps({"url": stub.url, "key": "k"}))
    monkeypatch.delenv("SHOAL_URL")
    assert f"The key is from {home / 'client.json'} (shoal login)." in cli("training", "list").err

    nowhere = "http://127.0.0.1:9"
    assert "The address is from --url." in cli("training", "list", "--url", nowhere).err
    assert "The address is from --url." in cli("training", "list", "--url", "server:8080").err
    monkeypatch.setenv("SHOAL_URL", nowhere)
    assert "The address is from SHOAL_URL." in cli("training", "list").err
    stub.routes["GET /workspaces/default/jobs"] = reply(404, {"error": {"code": "not_found", "message": "No."}})
    assert "is from" not in cli("training", "list", "--url", stub.url).err
