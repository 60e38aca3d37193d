"""Device files that a sandbox's cgroup allows: the rules, and the kernel's answers for both versions of cgroups."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.agent.sandbox import device_wall
from shoal.agent.sandbox.cgroups import Group
from shoal.agent.sandbox.device_wall import Rule

OTHER = "/dev/kmsg"
"""A device file that no sandbox needs."""
TRY = """
import os, sys
for entry in sys.argv[3:]:
    with open(entry, "w") as file:
        file.write("0")
said = []
for name in ("/dev/null", "/dev/zero", "/dev/ptmx", sys.argv[1], sys.argv[2]):
    try:
        os.close(os.open(name, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except PermissionError:
        said.append(name)
print(*said)
"""
IN_V2 = """
import subprocess, sys
from pathlib import Path
subprocess.run(["mount", "-t", "cgroup2", "none", sys.argv[1]], check=True)
from shoal.agent.sandbox.cgroups import Group
group = Group("test-device-wall-v2", Path(sys.argv[1]))
assert group.is_v2
group.folders[0].mkdir(parents=True, exist_ok=True)
try:
    assert group.limit_devices([sys.argv[4]])
    done = subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[3], sys.argv[4], *group.entries],
                          capture_output=True, text=True, check=True)
    print(done.stdout, end="")
finally:
    group.close()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not Path(OTHER).exists(), reason="needs root and device files")


def test_rules_are_the_usual_files_and_those_of_the_slots():
    assert device_wall.rules([]) == list(device_wall.USUAL)
    found = device_wall.rules(["/dev/null", "/dev/does-not-exist", "/etc"])
    assert found == list(device_wall.USUAL), "known, missing and ordinary files add nothing"
    assert Rule("c", 195, 3).line == "c 195:3 rwm" and Rule("c", 136, None).line == "c 136:* rwm"


@needs_root
def test_files_of_a_folder_are_allowed_as_well(tmp_path):
    try:
        os.mknod(tmp_path / "nvidia-cap1", 0o600 | 0o020000, os.makedev(236, 1))
    except PermissionError:
        pytest.skip("needs the right to create device files")
    assert device_wall.rules([str(tmp_path)])[-1] == Rule("c", 236, 1)


@needs_root
@pytest.mark.skipif(not Path("/sys/fs/cgroup/devices").is_dir(), reason="needs cgroups of version 1")
def test_version_1_lets_only_the_files_of_the_slots_be_opened(tmp_path):
    group = Group(f"test-device-wall-{os.getpid()}")
    try:
        assert group.limit_devices(["/dev/loop-control"])
        tried = [sys.executable, "-c", TRY, OTHER, "/dev/loop-control", *(e for e in group.entries if "devices" in e)]
        assert subprocess.run(tried, capture_output=True, text=True, check=True).stdout.split() == [OTHER]
    finally:
        group.close()
    assert not any(folder.exists() for folder in group.folders)


@needs_root
def test_version_2_lets_only_the_files_of_the_slots_be_opened(tmp_path):
    made = subprocess.run(["unshare", "--mount", "mount", "-t", "cgroup2", "none", str(tmp_path)], check=False)
    if made.returncode:
        pytest.skip("needs the right to mount cgroups of version 2")
    tried = ["unshare", "--mount", sys.executable, "-c", IN_V2, str(tmp_path), TRY, OTHER, "/dev/loop-control"]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [OTHER]


def test_a_machine_that_does_not_allow_it_goes_without(tmp_path):
    group = Group("test", tmp_path / "nothing")
    group._devices = tmp_path / "file" / "below"
    (tmp_path / "file").touch()
    assert group.limit_devices([]) is False
