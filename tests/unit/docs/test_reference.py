"""Undocumented means failing: everything a person can type, set or call is looked up in docs/reference."""

import ast
import re
from dataclasses import fields

import pytest

pytest.importorskip("fastapi", reason="needs the server extra")

from generator import api, cli
from generator.__main__ import main as generate

from shoal.cli.shared import errors
from shoal.core.errors import BY_CODE
from shoal.core.jobs import RESERVED_ENV
from shoal.core.settings import ENV_VARS, ServerSettings
from shoal.testing.each import check_each


def section(page: str, heading: str) -> str:
    """The text below a heading, up to the next of its rank or above."""
    rank = heading.split(" ")[0]
    match = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(rank)}}} |\Z)", page, re.MULTILINE | re.DOTALL)
    assert match, f"no heading {heading!r}"
    return match[1]


def test_the_reference_is_what_the_code_says(capsys):
    assert generate(["--check"]) == 0, capsys.readouterr().err


def test_every_command_and_option_has_a_meaning_and_an_example(reference):
    commands = {" ".join(path): command for path, command in cli.commands()}

    def check(name):
        text = section(reference["cli"], f"## shoal {name}")
        assert f"shoal {name}" in text.split("```bash")[1], "no example"
        for option in cli.options_of(commands[name]):
            row = next((line for line in text.splitlines() if f"`{option.names[0]}`" in line), "")
            assert row and row.rstrip(" |").split("|")[-1].strip() != f"`{option.names[0]}`", (
                f"{option.names[0]} has no meaning"
            )
            assert cli.help_of(option, commands[name]), f"{option.names[0]} has no meaning"

    check_each(commands, check)


def test_every_option_of_every_command_is_listed_once(reference):
    text = section(reference["cli"], "## Options of every command")
    for option in cli.global_options():
        assert f"`{option.names[0]}`" in text


def test_every_setting_is_documented(reference):
    text = section(reference["settings"], "## Server settings")
    for field in fields(ServerSettings):
        assert re.search(rf"^\| `{field.name}` \|.*\| \S.+ \|$", text, re.MULTILINE), field.name


def test_every_environment_variable_in_the_code_is_documented(reference, root):
    known = reference["settings"] + reference["job-runtime"]
    used = dict.fromkeys(ENV_VARS, "ENV_VARS") | dict.fromkeys(RESERVED_ENV, "RESERVED_ENV")
    for file in sorted((root / "src/shoal").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "SHOAL_" in text else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= dict.fromkeys(re.findall(r"\bSHOAL_[A-Z_]+[A-Z]\b", node.value), file.name)
    missing = {name: where for name, where in used.items() if not re.search(rf"\b{name}\b", known)}
    assert not missing


def test_every_route_is_documented(reference):
    def check(heading):
        text = section(reference["api"], f"### `{heading}`")
        assert text.strip().splitlines()[0] and not text.strip().startswith("- Who"), "no docstring"

    check_each((api.heading(route, method) for route in api.routes() for method in route.methods), check)


def test_every_error_code_and_exit_code_is_documented(reference):
    page = reference["errors"]
    exits = section(page, "## Exit codes of the command line")
    for code, error in BY_CODE.items():
        if code != "error":
            assert f"| `{code}` | `{error.__name__}` | {error.http_status} | {error.exit_code} |" in page
        assert f"| `{error.exit_code}` |" in exits
    for code in (errors.EXIT_USAGE, errors.EXIT_BUG, errors.EXIT_INTERRUPTED, errors.EXIT_BROKEN_PIPE):
        assert f"| `{code}` |" in exits


def test_every_schema_a_route_names_has_its_fields_listed(reference):
    for page in ("api", "schemas"):
        for name in re.findall(r"\[(\w+)\]\((?:schemas\.md)?#\w+\)", reference[page]):
            assert f"## {name}\n" in reference["schemas"], name
