"""The commands of the README and the tutorial, run as a reader would: in order, in one shell, on a private server of their own.

In ```console blocks `$ ` begins a command, the rest is what the reader sees. A command may fail only if `echo $?` follows it;
what stands below that is the exit code it must have had.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from marks import takes_minutes

from shoal.testing.live import LiveServer
from shoal.testing.patience import patient

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    text: str
    expected: int = 0


@pytest.fixture
def shell(tmp_path):
    """Run commands in a copy of the examples; gives their exit codes and all they printed."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    server = LiveServer(home)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**server.env(), "PATH": path, "HOME": str(home), "SHOAL_SLOTS": "4"}

    def run(commands):
        codes = tmp_path / "codes"
        # The status is put back after it was noted, for a following `echo $?`.
        script = "\n".join(f'{c.text}\n__s=$?; echo "$__s" >> {codes}; (exit $__s)' for c in commands)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=patient(600),
            check=False,
        )
        return [int(c) for c in codes.read_text().split()], done.stdout + done.stderr

    yield run
    server.close()


@takes_minutes
@pytest.mark.torch
@pytest.mark.timeout(700)
@pytest.mark.parametrize("page", sorted((ROOT / "docs/tutorial").glob("*.md")), ids=lambda p: p.name)
def test_the_tutorial_does_what_it_says(shell, page):
    commands = [c for kind, body in blocks(page) if kind == "console" for c in typed(body)]
    assert commands
    check(commands, *shell(commands))


@pytest.mark.torch
@pytest.mark.timeout(700)
def test_the_readme_does_what_it_says(shell):
    shown = [body for kind, body in blocks(ROOT / "README.md") if kind == "bash" and "scripts/demo" not in body]
    commands = [Command(line.split("  #")[0].strip()) for body in shown for line in body.splitlines()]
    assert any(c.text.startswith("shoal training run") for c in commands)
    check(commands, *shell(commands))


def check(commands, codes, output):
    for command, code in zip(commands, codes, strict=True):
        assert code == command.expected, f"$ {command.text}\nexited with {code}\n{output}"


def blocks(page):
    return BLOCK.findall(shorter(page.read_text(encoding="utf-8")))


def typed(body):
    """The commands of a console block."""
    lines = body.splitlines()
    commands = []
    while lines:
        line = lines.pop(0)
        if not line.startswith("$ "):
            continue
        text = line.removeprefix("$ ")
        if text == "echo $?":
            commands[-1] = Command(commands[-1].text, int(lines.pop(0)))
            continue
        if document := re.search(r"<<'(\w+)'", text):
            end = lines.index(document[1]) + 1
            text = "\n".join([text, *lines[:end]])
            del lines[:end]
        commands.append(Command(text))
    return commands


def shorter(text):
    """Fewer steps than a reader would wait for."""
    text = re.sub(r"--steps \d\d\b", "--steps 5", text)
    return re.sub(
        r"(python|torchrun|--) (.*)train\.py(?= *(?:#|$))", r"\1 \2train.py --steps 5", text, flags=re.MULTILINE
    )
