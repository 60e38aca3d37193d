"""Hosts made of namespaces behave as machines do: they are switched off, freeze, lose their cable, and come back."""

import socket
import subprocess
import sys
import time

import psutil
import pytest
from marks import takes_minutes

from shoal.testing import line
from shoal.testing.engines import eventually
from shoal.testing.hosts import SSH_PORT, lan, missing

if why := missing():
    pytest.skip(why, allow_module_level=True)


@pytest.fixture(scope="module")
def net():
    with lan("red", "blue") as made:
        yield made


def reaches(address):
    try:
        socket.create_connection((address, SSH_PORT), timeout=1).close()
    except OSError:
        return False
    return True


def datagrams(net, host, count):
    """Return the times at which the packets of the host arrive here."""
    arrived = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind((net.address, 0))
        ear.settimeout(20)
        to = (net.address, ear.getsockname()[1])
        send = f"import socket; mouth = socket.socket(type=socket.SOCK_DGRAM)\nfor _ in range({count}): mouth.sendto(bytes(150), {to})"
        child = host.popen(sys.executable, "-c", send)
        try:
            while True:
                ear.recv(2000)
                arrived.append(time.monotonic())
                ear.settimeout(2)
        except TimeoutError:
            pass
    assert child.wait(20) == 0
    return arrived


def test_a_host_has_its_own_name_home_and_processes_and_opens_to_its_key_only(net, tmp_path):
    red, blue = net.hosts
    assert red.run("hostname").stdout == "red\n" and blue.run("sh", "-c", "echo $HOME").stdout == f"{blue.home}\n"
    ssh = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", f"-oUserKnownHostsFile={tmp_path / 'known'}",
           "-oIdentitiesOnly=yes"]  # fmt: skip
    told = subprocess.run([*ssh, "-i", net.key, red.target, "hostname; echo $HOME"], capture_output=True, text=True)
    assert told.stdout.split() == ["red", str(red.home)]
    stranger = subprocess.run([*ssh, "-i", tmp_path / "none", red.target, "true"], capture_output=True, text=True)
    assert stranger.returncode == 255 and "Permission denied" in stranger.stderr
    assert red.processes() == blue.processes() == []


def test_a_frozen_host_stands_still_and_goes_on(net):
    blue = net["blue"]
    child = blue.popen("sleep", "100")
    [sleeper] = blue.processes()
    blue.freeze()
    assert sleeper.status() == psutil.STATUS_STOPPED and child.poll() is None
    blue.thaw()
    assert blue.run("true").returncode == 0 and sleeper.status() != psutil.STATUS_STOPPED
    sleeper.kill()
    child.wait(10)


def test_a_cut_cable_is_cut_both_ways_and_can_be_mended(net):
    red = net["red"]
    red.cut()
    assert not reaches(red.address)
    red.mend()
    eventually(lambda: reaches(red.address))


@takes_minutes
def test_a_host_that_is_switched_off_takes_all_its_processes_with_it_and_boots_with_the_same_disk(net):
    red = net["red"]
    child = red.popen("sh", "-c", "setsid sleep 100 & sleep 100")
    (red.home / "kept").write_text("here")
    running = red.processes()
    red.kill()
    assert child.wait(10) != 0 and not reaches(red.address)
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in running)
    red.boot()
    assert reaches(red.address) and red.processes() == [] and (red.home / "kept").exists()


def test_nothing_is_left_of_hosts_that_are_gone():
    with lan("green") as net:
        bridge, folder, init = net.bridge, net.folder, net["green"]._init
        assert bridge in psutil.net_if_addrs()
    assert bridge not in psutil.net_if_addrs() and not folder.exists() and not init.is_running()


@pytest.mark.skipif(line.missing() is not None, reason=str(line.missing()))
def test_a_long_lossy_and_narrow_line_is_so_and_leaves_nothing_behind():
    with lan() as net:
        far = net.add("far", line=line.Line(delay_s=0.05, loss=0.2, bytes_per_s=100_000))
        began = time.monotonic()
        assert any(reaches(far.address) for _ in range(5))
        assert time.monotonic() - began >= 0.1, "there and back"
        arrived = datagrams(net, far, 200)
        assert 110 <= len(arrived) <= 190, "about a fifth is lost"
        assert arrived[-1] - arrived[0] > 0.2, "one after the other"
        cards = set(psutil.net_if_addrs())
        far.kill()
        far.boot()
        assert far.is_up and far._carrier.poll() is None
        carrier = far._carrier
    assert carrier.poll() is not None and not cards & {net.bridge, far._cable} & set(psutil.net_if_addrs())
