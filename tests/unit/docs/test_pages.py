"""The written pages: links lead somewhere, commands parse, the README fits a screen, dependencies have reasons."""

import contextlib
import functools
import re
import shlex
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts.exceptions import CycloptsError, MissingArgumentError

from shoal.cli.main import app
from shoal.cli.shared.aliases import expand
from shoal.testing.each import check_each

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
FIRST_SCREEN = 45
pytestmark = pytest.mark.usefixtures("parse_fast")


def on_each_page(check):
    """Check the text of every page; fail once, with all pages that are wrong and why."""
    check_each(
        (page.relative_to(ROOT) for page in PAGES),
        lambda name: check(ROOT / name, (ROOT / name).read_text(encoding="utf-8")),
    )


def test_every_relative_link_leads_somewhere():
    on_each_page(links_lead_somewhere)


def links_lead_somewhere(page, text):
    text = FENCE.sub("", text)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target} does not exist"
        assert found.is_relative_to(ROOT), f"{target} leaves the repository"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}: no such heading"


def test_every_shoal_command_shown_is_one_the_parser_takes():
    on_each_page(commands_shown_are_taken)


def commands_shown_are_taken(_, text):
    has_project = "shoal.yaml" in text
    for command in shoal_commands(text):
        words = shlex.split(command, comments=True)[1:]
        try:
            check(tuple(words), has_project=has_project)
        except CycloptsError as error:
            raise AssertionError(f"{command}\n{error}") from None


def test_every_shoal_command_spoken_of_exists_with_its_options():
    """A command that is cut short with `…` is not meant to be typed, and arguments may be left out."""
    on_each_page(commands_spoken_of_exist)


def commands_spoken_of_exist(_, text):
    text = FENCE.sub("", text)
    for span in re.findall(r"`(shoal [^`…]+)`", text):
        try:
            check(tuple(shlex.split(split(span)[0])[1:]))
        except MissingArgumentError:
            continue
        except CycloptsError as error:
            raise AssertionError(f"{span}\n{error}") from None


def test_no_page_names_a_path_of_somebodys_machine():
    def check(_, text):
        assert not re.search(r"/(?:root|work|home/(?!me/|ada/)\w+)/", text)

    on_each_page(check)


def test_the_first_screen_of_the_readme_fits_a_screen():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("## "))
    assert lines[0] == "# Shoal"
    assert first <= FIRST_SCREEN, f"{first} lines before the first section"


def test_every_dependency_has_its_reason():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs/explanation/dependencies.md").read_text(encoding="utf-8")
    listed = project["dependencies"] + [d for extra in project["optional-dependencies"].values() for d in extra]
    for requirement in listed:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
        if name != "shoal-train":
            assert re.search(rf"^\| `{re.escape(name)}` \| \S.+ \|$", page, re.MULTILINE), f"no reason for {name}"


def test_every_page_is_reachable_from_the_index():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT / "docs"))
        if name != "README.md":
            assert f"]({name})" in index, f"docs/README.md does not link {name}"


@functools.cache  # many pages show the same commands; those that fail are not kept
def check(words: tuple[str, ...], *, has_project: bool = False) -> None:
    """Parse like main(): the options of every command first, the rest by the command itself.

    `has_project`: in a folder with a project file, for pages about it. Elsewhere `training run` needs a name.
    """
    if not words or {"--help", "--version"} & set(words):
        return
    with project_folder() if has_project else contextlib.nullcontext():
        parse(words)


@contextlib.contextmanager
def project_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("shoal.yaml").write_text("run: train.py\nprofiles: {big: {}, debug: {}, cpu: {}}\n")
        yield


def parse(words: tuple[str, ...]) -> None:
    _, bound, _ = app.meta.parse_args(list(expand(app, words)), exit_on_error=False, print_error=False)
    if bound.args:
        app.parse_args(expand(app, bound.args), exit_on_error=False, print_error=False)


def shoal_commands(text: str) -> list[str]:
    """Command lines in shell blocks, with continued lines joined; `$(shoal …)` counts too."""
    found = []
    for _, kind, body in FENCE.findall(text):
        if kind not in ("bash", "console", "sh", "yaml"):
            continue
        for line in re.sub(r"\\\n\s*", "", body).splitlines():
            line = line.strip().removeprefix("$ ").removeprefix("- run: ").removeprefix("run: ")
            found += re.findall(r"\$\((shoal [^)]*)\)", line)
            found += [part for part in split(line) if re.match(r"(shoal|flexai)( |$)", part)]
    return found


def split(line: str) -> list[str]:
    """The commands of a line: parts between `;`, `&&`, `||` and `|`, without redirections and leading assignments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    skip = False
    for token in lexer:
        if set(token) <= set("<>&") and set(token) & set("<>"):
            skip = True
        elif set(token) <= set("();|&"):
            commands.append([])
        elif skip:
            skip = False
        elif commands[-1] or not re.match(r"(\w+=|(if|then|else|while|do|!)$)", token):
            commands[-1].append(token)
    return [shlex.join(c) for c in commands if c]


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }
