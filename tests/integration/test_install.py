"""The second person comes in with what the first one's commands print: a real pip, a private CA, a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

import shoal
from shoal.testing.live import live_server
from shoal.testing.patience import patient

PRELOADS = False
PASSWORD = "a long enough password"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A private server with a job of its owner's, which `server share` has opened to others."""
    with live_server(tmp_path_factory.mktemp("home"), slots=2, warm=False) as server:
        code = tmp_path_factory.mktemp("code")
        (code / "job.py").write_text("print('mine')\n")
        server.cli("training", "run", "before", "--follow", "--", "job.py", cwd=code)
        done = server.cli(
            "server", "share", "--email", "ada@example.org", "--name", "Ada", "--password-stdin", input=PASSWORD
        )
        server.told = done
        yield server


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """An environment with pip and nothing else, in use as on a new machine."""
    folder = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


def elsewhere(venv):
    """Return the environment of someone on another machine: nothing of ours is in it."""
    home = venv.parent / "home"
    home.mkdir(exist_ok=True)
    path = f"{venv / 'bin'}:/usr/bin:/bin"
    # The machine has no way to other indexes: everything must come from the server.
    return {"HOME": str(home), "PATH": path, "TERM": "dumb", "COLUMNS": "80", "PIP_INDEX_URL": "http://127.0.0.1:9/",
            "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}  # fmt: skip


def at_a_terminal(line, env, answers):
    """Run a line in a shell on a terminal, and type an answer whenever it asks; return what it showed and its exit code."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(env["HOME"])
        os.execve("/bin/bash", ["bash", "-c", line], env)
    shown, deadline, todo = "", time.monotonic() + patient(120), list(answers)
    try:
        while time.monotonic() < deadline:
            if not select.select([fd], [], [], 1)[0]:
                continue
            try:
                data = os.read(fd, 4096)
            except OSError:
                break
            shown += data.decode(errors="replace")
            if todo and re.search(todo[0][0], shown):
                question, answer = todo.pop(0)
                shown = re.sub(question, "asked", shown, count=1)
                os.write(fd, answer.encode() + b"\n")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(fd)
    return shown, os.waitstatus_to_exitcode(status)


def test_one_command_shares_a_private_server_and_its_owner_keeps_everything(shared):
    assert re.search(r"https://\d+\.\d+\.\d+\.\d+:\d+\n", shared.told.stdout)
    assert shared.json("whoami")["user"]["email"] == "ada@example.org"
    assert [job["name"] for job in shared.json("training", "list")] == ["before"]
    assert shared.inspect("before")["created_by"] == "ada@example.org"
    again = shared.cli("server", "share", "--email", "ada@example.org", check=4)
    assert "already shared" in again.stderr and "workspace invite" in again.stderr
    assert "invitation" in shared.cli("workspace", "invite").stderr


def test_the_printed_line_installs_and_signs_up_by_a_private_ca(shared, venv):
    made = shared.json("workspace", "invite")
    assert "#sha256:" in made["link"] and "127.0.0.1" not in made["link"]
    env = elsewhere(venv)
    wrong = re.sub(r" [0-9a-f]{64} ", f" {'0' * 64} ", made["install"])
    shown, code = at_a_terminal(wrong, env, [])
    assert code == 1 and "another server" in shown
    assert not (venv / "bin" / "shoal").exists()

    answers = [("E-mail: ", "bob@example.org"), ("Password: ", PASSWORD), ("Password again: ", PASSWORD)]
    shown, code = at_a_terminal(made["install"], env, answers)
    assert code == 0, shown
    assert "You are signed in to https://" in shown and "now member" in shown

    def second(*words):
        ran = subprocess.run([venv / "bin" / "shoal", *words], env=env, cwd=env["HOME"], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert json.loads(second("version", "--json"))["client"] == shoal.__version__
    assert json.loads(second("whoami", "--json"))["user"]["email"] == "bob@example.org"
    assert [job["name"] for job in json.loads(second("training", "list", "--json"))] == ["before"]
    installed = list((venv / "lib").glob("python*/site-packages/*.dist-info"))
    assert len(installed) <= 30, sorted(path.name for path in installed)


def test_a_link_with_a_wrong_fingerprint_is_refused(shared):
    link = shared.json("workspace", "invite")["link"]
    wrong = re.sub(r"#sha256:.*", "#sha256:" + "0" * 64, link)
    env = {"SHOAL_HOME": str(shared.home.parent / "elsewhere")}
    refused = shared.cli("signup", "--invitation", wrong, "--email", "eva@example.org", "--password-stdin",
                         input=PASSWORD, env=env, check=5)  # fmt: skip
    assert "not the server you mean" in refused.stderr
    untrusted = shared.cli("whoami", "--url", link.partition("/invite")[0], env=env | {"SHOAL_API_KEY": "x"}, check=6)
    assert "--fingerprint" in untrusted.stderr
    # An address with the fingerprint in it works in every program that takes one.
    pinned = link.partition("/invite")[0] + "#" + link.partition("#")[2]
    assert "key" in shared.cli("whoami", "--url", pinned, env=env | {"SHOAL_API_KEY": "x"}, check=5).stderr


def test_the_command_starts_fast_where_only_the_client_is_installed(venv):
    """The least CPU time of some starts, which a busy machine changes little; `bench/install.py` measures."""

    def least(*words):
        taken = []
        for _ in range(3):
            begin = os.times()
            subprocess.run([venv / "bin" / words[0], *words[1:]], check=True, env=elsewhere(venv), capture_output=True)
            end = os.times()
            taken.append(end.children_user - begin.children_user + end.children_system - begin.children_system)
        return min(taken)

    bare = least("python", "-c", "pass")
    assert least("python", "-c", "import shoal") - bare < patient(0.05)
    assert least("shoal", "--help") < patient(0.3)
