"""A lease as a person has it: rented by the CLI, used by OpenSSH's own programs, refused to all others, gone when its time is over."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from datetime import datetime

import pytest
from lease_guests import (
    Guest,
    asked,
    certified,
    free_port,
    job_of,
    keys,  # noqa: F401
    lease_of,
    release,
    rent,
    said,
    with_password,
)

from shoal.core.settings import Layout, ServerSettings
from shoal.testing.engines import eventually
from shoal.testing.live import live_server, processes_of
from shoal.testing.patience import patient

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the OpenSSH client")
SHORT_S = round(patient(12))
"""The time of a lease that ends while a test watches: long enough to be used before, also on a busy machine."""
ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    peer, _ = listener.accept()
    peer.sendall(b"echo " + peer.recv(100))
    peer.close()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    ServerSettings(preflight_after_h=0.0, ssh_passwords=True, lease_disk_gb=1, warm=False).save(Layout(home))
    with live_server(home, slots=4) as server:
        yield server
        # What they have on the disk goes with them.
        with server.client() as client:
            jobs = [client.leases.release(lease.id).job for lease in client.leases.list()]
            eventually(lambda: all(client.jobs.get(job).status.is_terminal for job in jobs))


@pytest.fixture(scope="module")
def guest(server, keys):  # noqa: F811
    lease = server.json("machine", "rent", "--name", "box", "--time", "1h", "--ssh-key", str(keys / "mine.pub"))
    assert lease["status"] == "running" and lease["sandbox"]
    return Guest(lease, keys / "mine", keys)


@pytest.fixture(scope="module")
def other(server, keys):  # noqa: F811
    """Another person's lease, with a password too. It was rented for a moment, and extended."""
    lease = rent(server, keys, "other", key="theirs", password=True, time_s=SHORT_S)
    with server.client() as client:
        client.leases.extend("other", 3600)
    return Guest(lease, keys / "theirs", keys)


def test_a_command_runs_there_with_its_input_output_and_exit_code(guest):
    done = guest.ssh("cat; echo aside >&2; exit 3", check=3, input=b"hello \0\xff\n")
    assert (done.stdout, done.stderr) == (b"hello \0\xff\n", b"aside\n")
    assert guest.ssh("kill -9 $$", check=None).returncode != 0
    assert guest.ssh("exec 2>&-; sleep 1; echo late").stdout == b"late\n", "one stream may end before the other"
    home = guest.ssh("echo $HOME; pwd").stdout.decode().split()
    assert home[0] == home[1]


def test_a_terminal_has_its_size_and_the_greeting_says_how_long_is_left(guest):
    command = " ".join(["stty rows 33 cols 99; ssh", *guest.options(), "-tt", guest.address])
    words = {"input": b"stty size; tty; exit 4\n", "capture_output": True, "timeout": patient(60), "check": False}
    done = subprocess.run(["script", "-qec", command, "/dev/null"], **words)
    assert done.returncode == 4, done
    assert b"33 99" in done.stdout and b"/dev/pts/" in done.stdout and re.search(rb"ends in 5\d min", done.stdout)


@pytest.mark.parametrize("terminal", ["-tt", "-T"])
def test_input_that_comes_after_the_end_does_not_cost_the_exit_code(guest, terminal):
    words = ["ssh", *guest.options(), terminal, guest.address, "head -n 5000 > /dev/null; exit 4"]
    for _ in range(5):
        with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as typing:
            done = subprocess.run(words, stdin=typing.stdout, capture_output=True, timeout=patient(60), check=False)
            typing.kill()
        assert done.returncode == 4, done.stderr


def test_files_travel_both_ways_by_scp_old_and_new_by_sftp_and_by_rsync(guest, tmp_path):
    sent = tmp_path / "sent"
    sent.write_bytes(os.urandom(1 << 20))
    options = guest.options()
    ways = [["scp", *options], ["scp", "-O", *options]]
    if shutil.which("rsync"):
        ways.append(["rsync", "-e", " ".join(["ssh", *guest.options()])])
    for number, copy in enumerate(ways):
        got = tmp_path / f"got-{number}"
        subprocess.run([*copy, sent, f"{guest.address}:there-{number}"], check=True, timeout=patient(60))
        subprocess.run([*copy, f"{guest.address}:there-{number}", got], check=True, timeout=patient(60))
        assert got.read_bytes() == sent.read_bytes(), copy[:2]
    batch = f"put {sent} by-sftp\nls -l by-sftp\nget by-sftp {tmp_path / 'by-sftp'}\nrm by-sftp\n"
    subprocess.run(["sftp", *options, "-b", "-", guest.address], input=batch.encode(), check=True, timeout=patient(60))
    assert (tmp_path / "by-sftp").read_bytes() == sent.read_bytes()


def test_a_port_is_forwarded_each_way(guest):
    inside = guest.start(guest.address, f"{sys.executable} -u -c '{ECHO}'")
    try:
        port, ours = int(inside.stdout.readline()), free_port()
        outside = guest.start("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{ours}:127.0.0.1:{port}", guest.address)
        try:
            eventually(lambda: asked(ours) == b"echo hello")
        finally:
            outside.kill()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = free_port()
            code = f"import socket; socket.create_connection(('127.0.0.1', {theirs})).sendall(b'from inside')"
            back = f"{theirs}:127.0.0.1:{listener.getsockname()[1]}"
            done = guest.start("-R", back, guest.address, f'{sys.executable} -c "{code}"')
            listener.settimeout(patient(30))
            with listener.accept()[0] as peer:
                assert peer.recv(100) == b"from inside"
            assert done.wait(patient(30)) == 0, done.stderr.read()
    finally:
        inside.kill()


def test_a_jump_reaches_the_lease_itself_by_its_own_host_key(guest):
    login = guest.lease["login"]
    jump = f"ssh {' '.join(guest.options())} -W %h:%p {guest.address}"
    argv = ["ssh", *guest.options(Port=22, ProxyCommand=jump), f"{login}@{login}", "echo end to end"]
    done = subprocess.run(argv, capture_output=True, timeout=patient(60), check=False)
    assert done.stdout == b"end to end\n", done


def test_without_a_key_the_cli_gets_in_by_a_certificate_and_copies_too(server, guest, tmp_path):
    assert server.cli("machine", "ssh", "box", "--", "echo certified; exit 5", check=5).stdout == "certified\n"
    (tmp_path / "note").write_text("by hand")
    server.cli("machine", "cp", str(tmp_path / "note"), "box:note")
    server.cli("machine", "cp", "box:note", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "by hand"
    listed = server.json("machine", "list")
    assert [lease["name"] for lease in listed["leases"]] == ["box"] and listed["machines"][0]["slots_free"] == 3


def test_a_password_opens_only_the_lease_it_was_made_for(server, guest, other, keys, tmp_path):  # noqa: F811
    password = other.lease["password"]
    assert re.fullmatch(r"[a-z0-9]{24}", password)
    assert with_password(other.lease, password, keys, tmp_path).stdout == b"in\n"
    wrong = with_password(other.lease, password[:-1] + "!", keys, tmp_path)
    assert wrong.returncode == 255 and b"Permission denied" in wrong.stderr
    assert with_password(guest.lease, password, keys, tmp_path).returncode == 255
    assert password not in (server.layout.server_log.read_text() + json.dumps(lease_of(server, "other")))


def test_when_its_time_is_over_everybody_is_out_and_nothing_is_left(server, other, keys):  # noqa: F811
    reminded = Guest(rent(server, keys, "reminded", time_s=600 + SHORT_S), keys / "mine", keys)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    terminal = subprocess.Popen(["ssh", *reminded.options(), "-tt", reminded.address], **pipes)
    ending = Guest(rent(server, keys, "ending", time_s=SHORT_S), keys / "mine", keys)
    job = job_of(server, ending.lease).id
    stubborn = "setsid nohup sh -c \"trap '' TERM HUP; sleep 1000\" > /dev/null 2>&1 &"
    ending.ssh(f"setsid nohup sleep 1000 > /dev/null 2>&1 & {stubborn}")
    session = ending.start(ending.address, "trap '' TERM HUP INT; while true; do date >> dirty; sleep 1; done")
    eventually(lambda: len([p for p in processes_of(job) if "sleep" in p.name()]) >= 2)
    end = ends_at(ending.lease)
    session.wait(SHORT_S + patient(30))
    gone_s = time.time() - end
    eventually(lambda: not processes_of(job))
    left_s = time.time() - end
    print(f"access gone after {gone_s:.2f} s, the last process after {left_s:.2f} s")
    assert gone_s <= patient(2.0) and left_s <= patient(2.0)
    assert ending.ssh("true", check=255)
    view = lease_of(server, "ending")
    assert (view["status"], view["reason"]) == ("ended", "its time ran out")
    with server.client() as client:
        eventually(lambda: client.snapshots.list("ending"), timeout_s=60)
        assert client.snapshots.list("ending")[0].files == 1, "what was being written is kept"
    assert other.ssh("echo still here").stdout == b"still here\n", "it was extended"
    extended_s = ends_at(lease_of(server, "other")) - ends_at(other.lease)
    assert extended_s == 3600
    spent_s = job_of(server, ending.lease).slot_seconds
    assert SHORT_S - patient(3) <= spent_s <= SHORT_S + left_s + patient(7), "it is in the ledger as any job is"
    assert said(terminal, "", b"ends in 10 min; to extend it: shoal machine extend reminded")
    release(server, "reminded")
    assert terminal.wait(patient(10)) == 255


def test_wrong_keys_and_certificates_are_refused_and_too_many_tries_too(server, guest, other, keys, tmp_path):  # noqa: F811
    assert other.ssh("echo in").stdout == b"in\n"
    assert "Permission denied" in Guest(other.lease, keys / "mine", keys).refusal(), "another's key"
    authority = server.layout.server_dir / "ssh_ca.key"
    expired, foreign, forged = (certified(tmp_path / name, authority, login, validity) for name, login, validity in [
        ("expired", other.lease["login"], "-2m:-1m"), ("foreign", guest.lease["login"], "-1m:+5m"), ("good", other.lease["login"], "-1m:+5m"),
    ])  # fmt: skip
    assert Guest(other.lease, forged, keys).ssh("echo in").stdout == b"in\n", "else the next two would mean nothing"
    assert "Permission denied" in Guest(other.lease, expired, keys).refusal()
    assert "Permission denied" in Guest(other.lease, foreign, keys).refusal(), "another lease's certificate"
    assert (
        "Permission denied"
        in Guest(
            other.lease, certified(tmp_path / "own", keys / "mine", other.lease["login"], "-1m:+5m"), keys
        ).refusal()
    )
    said = [Guest(other.lease, keys / "mine", keys).refusal() for _ in range(3)]
    assert "Too many failed tries" in said[-1], said
    assert "Too many failed tries" in other.refusal(), "even with the right key, for a minute"
    assert guest.ssh("echo in").stdout == b"in\n", "at other leases nothing has changed"
    release(server, "other")
    job = job_of(server, other.lease).id
    eventually(lambda: not processes_of(job))
    assert other.lease["password"] not in (server.layout.server_log.read_text() + json.dumps(lease_of(server, "other")))


def test_a_server_that_is_killed_finds_its_leases_again_with_their_time_and_their_processes(server, guest):
    before = guest.ssh("setsid nohup sleep 4321 > /dev/null 2>&1 & echo $!").stdout.decode().strip()
    session = guest.start(guest.address, "sleep 1000")
    by_cli = f"{sys.executable} -m shoal.cli machine ssh box"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": server.env()}
    shell = subprocess.Popen(["script", "-qec", by_cli, "/dev/null"], **pipes)
    assert said(shell, "echo before-$((6 * 7))", b"before-42")
    server.kill()
    assert session.wait(patient(30)) == 255
    server.start()
    assert said(shell, "", b"ends in") and said(shell, "echo after-$((6 * 7)); exit 3", b"after-42")
    assert shell.wait(patient(30)) == 3
    eventually(lambda: lease_of(server, "box")["status"] == "running")
    view = lease_of(server, "box")
    for fact in ("expires_at", "login", "port", "host_key", "own_host_key"):
        assert view[fact] == guest.lease[fact], fact
    assert guest.ssh(f"kill -0 {before} && echo alive").stdout == b"alive\n"


def test_a_lease_whose_agent_is_lost_is_offline_and_can_be_restarted(server, guest):
    job = job_of(server, guest.lease)
    guest.ssh("echo kept > kept")
    os.kill(job.attempt_list[-1].nodes[0].pid, 9)
    eventually(lambda: lease_of(server, "box")["status"] == "offline")
    offline = lease_of(server, "box")
    assert offline["reason"] and offline["expires_at"] == guest.lease["expires_at"]
    assert "machine restart box" in server.cli("machine", "ssh", "box", "--", "true", check=4).stderr
    server.cli("machine", "restart", "box")
    assert guest.ssh("cat kept").stdout == b"kept\n", "where its files are"
    release(server, "box")
    assert guest.ssh("true", check=255)


def ends_at(lease):
    return datetime.fromisoformat(lease["expires_at"]).timestamp()
