"""A machine in a swarm, from the link to the last process: a real server, its real keeper, and a script that does not train."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import psutil
import pytest
from marks import takes_minutes

from shoal.core.invitations import split_link, unseal
from shoal.core.settings import Layout, ServerSettings
from shoal.testing.engines import eventually
from shoal.testing.extras import needs
from shoal.testing.live import live_server
from shoal.testing.patience import patient
from shoal.testing.processes import environment

# Not imported to see whether it is there: that takes seconds, and only the keeper and the trainers need it.
pytestmark = needs("hivemind")

EXAMPLE = Path(__file__).parents[2] / "examples" / "swarm"
TERMS = "--target-batch-size 16 --local-steps 5 --checkpoint-rounds 1 --checkpoint-every 5s".split()
SCRIPT = """
import json, os, runpy, subprocess, sys, time

ticket = json.load(open(os.environ["SHOAL_SWARM"]))
if ticket["peer_name"].startswith("trainer"):
    runpy.run_path("train.py", run_name="__main__")
    sys.exit(0)
print("ticket", json.dumps({k: ticket[k] for k in ("peer", "run_id", "initial_peers", "mode")}), flush=True)
print("sees", os.environ.get("MY_TOKEN"), os.environ.get("SHOAL_API_KEY"), open("/input/words/a.txt").read(), flush=True)
if not os.path.exists("once"):
    open("once", "w").close()
    sys.exit(75)  # the swarm was lost
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(900)"
subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
print("trains", flush=True)
time.sleep(900)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    ServerSettings(preflight_after_h=0.0, warm=False).save(Layout(home))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))  # killed peers leave sockets there
        patch.setenv("OMP_NUM_THREADS", "1")
        with live_server(home, slots=1) as server:
            yield server


@pytest.fixture(scope="module")
def link(server, tmp_path_factory):
    """Return a link to a swarm in which only peers with the name trainer train."""
    folder = tmp_path_factory.mktemp("code") / "code"
    shutil.copytree(EXAMPLE, folder)
    (folder / "peer.py").write_text(SCRIPT)
    (folder / "words").mkdir()
    (folder / "words" / "a.txt").write_text("aardvark")
    server.cli("dataset", "push", "words", "--file", str(folder / "words"))
    entry = "peer.py --steps 100000 --batch-size 8".split()
    words = ("--dir", str(folder), "--dataset", "words", *TERMS, "--json", "--", *entry)
    return json.loads(server.cli("swarm", "create", "reef", *words).stdout)["link"]


def until(server, name, condition, timeout_s=120):
    """The swarm, once it is so."""
    deadline = time.monotonic() + patient(timeout_s)
    with server.client() as client:
        while not condition(swarm := client.swarms.get(name)):
            assert time.monotonic() < deadline, swarm
            time.sleep(0.1)
    return swarm


class Joined:
    """`shoal swarm join`, as it runs."""

    def __init__(self, server, link, name):
        argv = [sys.executable, "-m", "shoal.cli", "swarm", "join", link, "--name", name]
        env = server.env() | {"MY_TOKEN": "hidden", "SHOAL_API_KEY": "hidden"}
        self.process = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )
        self.lines = []

    def until(self, word):
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(word):
                return line
        raise AssertionError("".join(self.lines))

    def below(self):
        return [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]

    def end(self):
        """Exit code and all that was said."""
        rest, _ = self.process.communicate(timeout=patient(60))
        return self.process.returncode, "".join(self.lines) + rest


def test_a_peer_trains_comes_back_and_leaves_nothing_behind(server, link):
    joined = Joined(server, link, "laptop")
    joined.until("trains")
    tickets = [json.loads(line.partition(" ")[2]) for line in joined.lines if line.startswith("ticket")]
    assert len(tickets) == 2 and tickets[0] == tickets[1], "it did not come back as the same peer"
    assert tickets[0]["initial_peers"] and tickets[0]["mode"] == "local-steps"
    assert "sees None None aardvark\n" in joined.lines
    [peer] = server.json("swarm", "peers", "reef")
    assert (peer["id"], peer["name"]) == (tickets[0]["peer"], "laptop")
    below = joined.below()
    assert len(below) >= 3
    joined.process.send_signal(signal.SIGINT)
    code, said = joined.end()
    assert code == 0 and "Left swarm 'reef'" in said
    assert not psutil.wait_procs(below, timeout=patient(10))[1], "something of it lives"
    assert server.json("swarm", "peers", "reef")[0]["state"] == "left"
    home = server.home / "swarms" / "joined" / tickets[0]["peer"]
    assert [path.name for path in home.iterdir()] == ["run"], "keys or code are left"


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (lambda link: link[:-7], 2, "This link is damaged"),
        (lambda link: link.replace("/join/", "/enter/"), 2, "not a link to a swarm"),
        (lambda link: f"http://127.0.0.1:1/join/{link.rpartition('/')[2]}", 6, "does not answer"),
    ],
    ids=["cut off", "not one", "no server"],
)
def test_a_bad_link_is_one_line_and_what_to_do(server, link, change, code, text):
    said = server.cli("swarm", "join", change(link), check=code).stderr
    assert text in said and "hint:" in said and "Traceback" not in said


def test_a_clock_an_hour_off_is_named(server, link):
    """This machine's, set back for the command."""
    fresh, real = server.json("swarm", "invite", "reef")["link"], time.time
    with mock.patch("time.time", lambda: real() - 3600):
        said = server.cli("swarm", "join", fresh, check=4).stderr
    assert "3600 s behind the server's" in said and "timedatectl" in said


def test_a_link_that_has_expired_is_named(server, link):
    short = server.json("swarm", "invite", "reef", "--expires", "1s")["link"]
    ends = unseal(split_link(short)[1]).expires_at
    eventually(lambda: time.time() > ends, 20)
    said = server.cli("swarm", "join", short, check=5).stderr
    assert "This link has expired" in said and "hint:" in said and "Traceback" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_without_room_is_named(server, link, tmp_path):
    fresh = server.json("swarm", "invite", "reef")["link"]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(tmp_path)], check=True)
    try:
        said = server.cli("swarm", "join", fresh, "--dir", str(tmp_path / "peer"), check=4).stderr
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
    assert "has only 32.0 MiB free" in said and "--dir" in said and "Traceback" not in said


def test_the_doctor_looks_at_everything(server, link):
    fresh = server.json("swarm", "invite", "reef", "--expires", "1h")["link"]
    until(server, "reef", lambda swarm: swarm.keeper.addresses)
    found = {row["what"]: row for row in server.json("swarm", "doctor", fresh)}
    assert set(found) == {"swarm", "shoal", "torch", "hivemind", "numpy", "clock", "disk", "route", "tcp", "reach"}
    assert not any(row["fatal"] for row in found.values())


def test_everyone_is_killed_and_a_resume_goes_on_from_the_last_checkpoint_with_the_peers_that_are_left(server, link):
    """With the real engine: after all that train have left, one that does not train gets the state and is removed."""
    dead, bad, first = (Joined(server, link, name) for name in ("dead", "bad", "trainer-1"))
    dead.until("trains")
    bad.until("trains")
    swarm = until(server, "reef", lambda swarm: swarm.checkpoint is not None)
    below = [*dead.below()[1:], *first.below()[1:]]
    for process in (dead.process, first.process, psutil.Process(swarm.keeper.pid)):
        process.kill()
    assert not psutil.wait_procs(below, timeout=patient(20))[1], "what a killed peer started lives on"
    dead.end()
    first.end()
    with server.client() as client:
        kept = client.swarms.checkpoints("reef")[-1]
    before = json.loads(bad.lines[-3].partition(" ")[2])["run_id"]
    resumed = server.json("swarm", "resume", "reef", "--force")
    assert resumed["run_id"] != swarm.run_id and resumed["checkpoint"] == kept.name
    after = json.loads(bad.until("ticket").partition(" ")[2])
    assert after["run_id"] != before and after["initial_peers"], "it was not brought over"
    bad.until("trains")
    second = Joined(server, resumed["link"], "trainer-2")
    server.cli("swarm", "kick", "reef", "bad", "--reason", "sends noise", "--revoke")
    code, said = bad.end()
    assert code == 5 and "This peer was removed from the swarm: sends noise" in said
    refused = server.cli("swarm", "join", link, check=5)
    assert "revoked" in refused.stderr and "shoal swarm invite" in refused.stderr
    swarm = until(server, "reef", lambda swarm: swarm.peers and swarm.performance)
    assert swarm.round >= kept.step, "it began anew"
    swarm = until(server, "reef", lambda swarm: swarm.round > kept.step + 1)
    assert swarm.loss < 2 * kept.train_loss
    server.cli("swarm", "stop", "reef")
    code, said = second.end()
    assert code == 0 and "The swarm has stopped" in said


@takes_minutes
def test_stopping_ends_the_keeper(server, link):
    server.cli("swarm", "stop", "reef")
    until(server, "reef", lambda swarm: swarm.keeper.pid is None)
    left = [p for p in server.processes() if str(server.home / "swarms") in environment(p).get("SHOAL_NODE_DIR", "")]
    assert not left
