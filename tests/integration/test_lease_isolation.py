"""T3: a person inside a lease gets at nothing outside it, nor at more than its share; and the same attempts do succeed outside."""

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.agent.lease.volume import dial
from shoal.agent.node.workdir import NotReady
from shoal.agent.sandbox import cgroups
from shoal.agent.sandbox.confine import HOME, Confinement, LeaseLimits, Level
from shoal.agent.sandbox.mounts import Bind
from shoal.testing.patience import patient

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("bwrap"), reason="S3 needs root and bubblewrap")

WISH = LeaseLimits(memory_mb=160, cpus=1.0, pids=60, tmp_mb=8, shm_mb=8, disk_mb=32)
PROBES = Path(__file__).with_name("lease_probes")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Things of others on the machine: files, a process, ports, sockets. Facts about it for the probes."""
    folder = tmp_path_factory.mktemp("others")
    folder.chmod(0o755)
    (folder / "canary").write_text("another person's")
    with ExitStack() as stack:
        victim = subprocess.Popen(["sleep", "600"], env={"CANARY": "another's", "PATH": os.environ["PATH"]})
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        port = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        abstract, named = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        abstract.bind(f"\0shoal-canary-{os.getpid()}")
        named.bind(f"{folder}/named.sock")
        for end in (abstract, named):
            end.listen()
        (folder / "named.sock").chmod(0o777)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.connect(("192.0.2.1", 9))
            address = out.getsockname()[0]
        yield {
            "canary": str(folder / "canary"),
            "victim": victim.pid,
            "port": port.getsockname()[1],
            "address": address,
            "abstract": f"shoal-canary-{os.getpid()}",
            "named": f"{folder}/named.sock",
            "disk": "/dev/loop0",
            "group": str(cgroups.Group("x").folders[0].parent.parent / "cgroup.procs"),
            **{name: getattr(WISH, name) for name in ("memory_mb", "pids", "tmp_mb", "shm_mb", "disk_mb")},
        }


@pytest.fixture(scope="module")
def confinement(tmp_path_factory):
    made = Confinement(tmp_path_factory.mktemp("lease") / "l", "probed", WISH)
    made.open()
    yield made
    made.wipe()


def run(argv, **options):
    return subprocess.run(argv, capture_output=True, text=True, timeout=patient(120), check=False, **options)


def inside(confinement, argv, binds=()):
    return run(confinement.wrap(argv, binds), env={**confinement.env(), "PATH": "/usr/bin:/bin"})


def test_nothing_hostile_succeeds_inside_and_everything_does_outside(machine, confinement, tmp_path):
    assert confinement.summary == "S3"
    machine = {**machine, "agent_folder": str(confinement.volume.parent)}
    facts = {**machine, "scratch": f"{HOME}/scratch", "proxy": 3128}
    tried = inside(confinement, [sys.executable, "/probes", json.dumps(facts)], [Bind("/probes", str(PROBES))])
    assert tried.returncode == 0, tried.stderr
    found = json.loads(tried.stdout)
    assert len(found) >= 40
    assert {name: why for name, (succeeded, why) in found.items() if succeeded} == {}
    facts = {**machine, "scratch": str(tmp_path / "scratch"), "proxy": 0}
    # In namespaces of its own, so that what it mounts and renames is gone with it.
    control = run(["unshare", "--mount", "--uts", sys.executable, str(PROBES), json.dumps(facts)])
    assert control.returncode == 0, control.stderr
    refused = {name: why for name, (succeeded, why) in json.loads(control.stdout).items() if not succeeded}
    assert refused == {}, "these prove nothing: they fail outside too"


def test_the_way_out_leads_to_what_is_held_public(machine, confinement, monkeypatch):
    ask = (
        "import socket; end = socket.create_connection(('127.0.0.1', 3128), timeout=5); "
        f"end.sendall(b'CONNECT 127.0.0.1:{machine['port']} HTTP/1.1\\r\\n\\r\\n'); print(end.recv(100))"
    )
    assert "403" in inside(confinement, [sys.executable, "-c", ask]).stdout
    monkeypatch.setattr("shoal.agent.sandbox.egress_proxy.is_public", lambda address: True)
    assert "200 OK" in inside(confinement, [sys.executable, "-c", ask]).stdout


def test_bombs_hurt_only_the_lease(confinement):
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    command = confinement.wrap([sys.executable, "-c", bomb])
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        group = cgroups.Group("probed")
        while len(group._members()) < WISH.pids:
            assert running.poll() is None
        assert len(group._members()) <= WISH.pids
        confinement.kill()
        assert group._members() == []
    finally:
        running.kill()
        running.wait()
    confinement.close()
    confinement.open()
    assert inside(confinement, ["/bin/true"]).returncode == 0


def test_a_person_inside_can_work(confinement):
    script = (
        'set -e; cd; echo data > file; mkdir -p a/b; ln -s ../file a/link; test "$(cat a/link)" = data; '
        'id -un; hostname; python3 -c \'import socket; s = socket.create_server(("127.0.0.1", 8888)); '
        'socket.create_connection(("127.0.0.1", 8888)); print("own port")\'; ls /proc | grep -c \'^[0-9]\''
    )
    done = inside(confinement, ["/bin/bash", "-c", script])
    user, host, port, processes = done.stdout.split("\n")[:4]
    assert (user, host, port) == ("shoal", "probed", "own port"), done.stderr
    assert int(processes) < 10
    assert (confinement.volume / "file").stat().st_uid >= 20_000


def test_two_leases_have_users_of_their_own(confinement, tmp_path):
    other = Confinement(tmp_path / "other", "other", WISH)
    other.open()
    try:
        assert inside(confinement, ["touch", f"{HOME}/mine"]).returncode == 0
        assert inside(other, ["touch", f"{HOME}/mine"]).returncode == 0
        users = {(c.volume / "mine").stat().st_uid for c in (confinement, other)}
        assert len(users) == 2
    finally:
        other.wipe()


def test_a_weaker_sandbox_says_so_and_is_refused_where_it_must_not_be(tmp_path, monkeypatch):
    def cannot(self, limits):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cgroups.Group, "open", cannot)
    weaker = Confinement(tmp_path / "weaker", "weaker", WISH)
    weaker.open()
    try:
        assert weaker.level is Level.S2
        assert weaker.summary == "S2: no limits of memory and processes (Read-only file system)"
        assert inside(weaker, ["/bin/true"]).returncode == 0
    finally:
        weaker.wipe()
    strict = Confinement(tmp_path / "strict", "strict", LeaseLimits(disk_mb=32, least=Level.S3))
    with pytest.raises(NotReady, match="level S3, but this machine offers S2: no limits of memory"):
        strict.open()
    assert not (tmp_path / "strict" / "volume").is_mount()


def test_without_namespaces_files_outside_are_still_out_of_reach(machine, tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.agent.sandbox.confine.find", lambda program: None)
    lone = Confinement(tmp_path / "lone", "lone", WISH, python="/usr/bin/python3")
    lone.open()
    try:
        assert lone.summary == "S1: no namespaces (bubblewrap is not installed)"
        assert inside(lone, ["/bin/sh", "-c", "echo x > ~/file && cat ~/file"]).stdout == "x\n"
        for path in (machine["canary"], "/etc/shadow", "/proc/1/environ"):
            assert inside(lone, ["/bin/cat", path]).returncode != 0, path
        assert inside(lone, ["/bin/sh", "-c", "mount -t tmpfs x ~"]).returncode != 0
    finally:
        lone.wipe()


def test_a_socket_that_is_a_link_is_not_followed(machine, tmp_path):
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "true.sock"))
        end.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(dial(tmp_path / "true.sock"))
    (tmp_path / "false.sock").symlink_to(machine["named"])
    with pytest.raises(ConnectionRefusedError, match="not a socket"):
        dial(tmp_path / "false.sock")
