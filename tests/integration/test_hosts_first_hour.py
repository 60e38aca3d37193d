"""The first hour of a team of two: what each types, on two hosts, as a user without root; counts and times are printed.

The packages come from an index of ours on a third host, and for the second person from the first one's server. Neither host
reaches any other network.
"""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from importlib import metadata
from pathlib import Path

import pytest
from marks import takes_minutes

from shoal.server.packages import wheels
from shoal.testing.hosts import lan, missing
from shoal.testing.live import live_server
from shoal.testing.patience import patient

if why := missing():
    pytest.skip(why, allow_module_level=True)
PYTHON = "/usr/bin/python3"
"""An interpreter that other users can read, which the one of these tests may not be."""
if subprocess.run(
    [PYTHON, "-c", "import sys, ensurepip; sys.exit(sys.version_info < (3, 11))"], check=False
).returncode:
    pytest.skip(f"needs {PYTHON} 3.11 with venv: apt-get install python3-venv", allow_module_level=True)
pytestmark = pytest.mark.timeout(900)

ACCOUNT = "51001"
"""User id of the person on each host; there is no such user on this machine."""
PASSWORD = "a long enough password"
SCRIPT = """
for epoch in range(8):
    print(f"epoch {epoch} loss {2.5 / (epoch + 1):.4f}", flush=True)
"""


class Person:
    """Someone at a terminal of a host, without root. What they type is counted, with the seconds it took."""

    def __init__(self, host, name):
        self.host, self.name = host, name
        self.env = {"HOME": str(host.home), "USER": name, "PATH": f"{host.home}/.local/bin:/usr/bin:/bin", "TERM": "dumb",
                    "COLUMNS": "80", "PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "LANG": "C.UTF-8"}  # fmt: skip
        with (host.net.folder / f"{host.name}.etc" / "passwd").open("a") as users:
            users.write(f"{name}:x:{ACCOUNT}:{ACCOUNT}:{name}:{host.home}:/bin/bash\n")
        host.net.folder.chmod(0o711)
        os.chown(host.home, int(ACCOUNT), int(ACCOUNT))
        pid, self.fd = pty.fork()
        if pid == 0:
            who = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups", "--inh-caps=-all", "--"]
            shell = ["bash", "--norc", "--noprofile", "-i"]
            os.chdir(host.home)
            argv = [*host._enter(), f"--wd={host.home}", *who, *shell]
            argv.remove("--")
            os.execvpe(argv[0], argv, self.env | {"PS1": "", "PS2": ""})
        self.pid, self.typed = pid, []
        self.setup("cd ~; stty -echo; PS1='<$?>'; bind 'set enable-bracketed-paste off'")

    def setup(self, line):
        os.write(self.fd, f"{line}\n".encode())
        return self._until(r"<(\d+)>$", 30)

    def type(self, line, *answers, limit_s=300):
        """Type a line and the answers to what it asks; return what it showed once the prompt is back."""
        begin = time.monotonic()
        os.write(self.fd, f"{line}\n".encode())
        shown = ""
        for question, answer in answers:
            shown += self._until(question, limit_s)
            os.write(self.fd, f"{answer}\n".encode())
        shown += self._until(r"<(\d+)>$", limit_s)
        self.typed.append((line, time.monotonic() - begin))
        assert shown.endswith("<0>"), f"{self.name}: {line}\n{shown}"
        return shown.removesuffix("<0>").replace("\r\n", "\n")

    def leave(self):
        os.write(self.fd, b"exit\n")
        os.waitpid(self.pid, 0)
        os.close(self.fd)

    def report(self):
        total = sum(seconds for _, seconds in self.typed)
        print(f"\n{self.name}: {len(self.typed)} commands, {total:.0f} s of waiting")
        for line, seconds in self.typed:
            print(f"  {seconds:6.1f} s  {line if len(line) < 90 else line[:87] + '…'}")

    def _until(self, pattern, limit_s):
        shown, deadline = "", time.monotonic() + patient(limit_s)
        while not re.search(pattern, shown):
            assert time.monotonic() < deadline, f"{self.name} waits for {pattern!r} and sees:\n{shown}"
            if select.select([self.fd], [], [], 1)[0]:
                shown += os.read(self.fd, 65536).decode(errors="replace")
        return shown


@pytest.fixture(scope="module")
def net():
    with lan("ada", "bob") as made:
        yield made


@pytest.fixture(scope="module")
def index(net, tmp_path_factory):
    """URL of an index with all that `shoal-train[server]` needs, as a company without the internet would have one."""
    home = tmp_path_factory.mktemp("index")
    (home / "wheels").mkdir(parents=True)
    known = wheels.dependencies()
    for one in needed_by("server"):
        if wheels.normal(one.metadata["Name"]) not in known:
            (home / "wheels" / wheels.repacked_name(one)).write_bytes(wheels.repack(one))
    with live_server(home, slots=0, warm=False, host=net.address, allow_clear_text=True, port=8080):
        yield f"http://{net.address}:8080/simple/"


def needed_by(extra):
    """Return the installed distributions that an extra of ours needs, directly and in turn."""
    found, todo = (
        {},
        [r for r in wheels.own_distribution().requires or () if f"extra == '{extra}'" in r.replace('"', "'")],
    )
    while todo:
        name = re.match(r"[A-Za-z0-9._-]+", todo.pop())[0]
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if wheels.normal(name) not in found:
            found[wheels.normal(name)] = one
            todo += [r for r in one.requires or () if "extra ==" not in r]
    return found.values()


@takes_minutes
def test_two_people_train_within_their_first_hour(net, index):
    ada, bob = Person(net["ada"], "ada"), Person(net["bob"], "bob")
    host = Path(net["ada"].home)
    try:
        for home in (net["ada"].home, net["bob"].home):  # the script they already have
            (home / "gpt").mkdir()
            (home / "gpt" / "train.py").write_text(SCRIPT)
            subprocess.run(["chown", "-R", f"{ACCOUNT}:{ACCOUNT}", home / "gpt"], check=True)
        for person in (ada, bob):
            person.setup("cd gpt")

        ada.type("python3 -m venv ~/env && . ~/env/bin/activate")
        at = index.split("/")[2].partition(":")[0]
        ada.type(f"pip install -q --index-url {index} --trusted-host {at} 'shoal-train[server]'")
        ada.type("shoal init --yes")
        assert "succeeded" in ada.type("shoal training run -f")
        curve = ada.type("shoal training metrics gpt")
        assert "loss" in curve and "0.3125" in curve
        shared = ada.type(
            "shoal server share --email ada@example.org", ("New password: ", PASSWORD), ("again: ", PASSWORD)
        )
        assert f"https://{net['ada'].address}:8443" in shared
        assert "gpt" in ada.type("shoal training list"), "her job is still hers"
        invited = ada.type("shoal workspace invite")
        line = next(line for line in invited.splitlines() if line.startswith("python3 -c "))

        questions = [("E-mail: ", "bob@example.org"), ("Password: ", PASSWORD), ("again: ", PASSWORD)]
        assert "now member" in bob.type(line, *questions)
        bob.type("shoal init --yes --name mine")
        assert "succeeded" in bob.type("shoal training run -f")
        assert "mine" in ada.setup("shoal training list")
        assert len(ada.typed) <= 8 and len(bob.typed) <= 3
    finally:
        ada.setup("shoal server stop")
        ada.leave()
        bob.leave()
        ada.report()
        bob.report()
    assert not [p for p in net["ada"].processes() if "shoal" in " ".join(p.cmdline())], host
