"""Other people's files, and the machine's."""

import ctypes
import os
import stat
import struct
import sys
from pathlib import Path

from hostile import FACTS, call, probe


@probe
def read_shadow():
    Path("/etc/shadow").read_bytes()


@probe
def read_another_persons_file():
    Path(FACTS["canary"]).read_bytes()


@probe
def list_another_persons_folder():
    list(Path(FACTS["canary"]).parent.iterdir())


@probe
def write_into_another_persons_folder():
    path = Path(FACTS["canary"]).with_name("planted")
    path.write_text("x")
    path.unlink()


@probe
def list_the_agents_own_folder():
    list(Path(FACTS["agent_folder"]).iterdir())


def _write_in(folder):
    path = Path(folder) / "shoal-probe"
    path.write_text("x")
    path.unlink()


@probe
def write_into_usr():
    _write_in("/usr")


@probe
def write_into_the_interpreter():
    _write_in(sys.prefix)


@probe
def write_into_etc():
    _write_in("/etc")


@probe
def write_into_the_root():
    _write_in("/")


@probe
def write_into_dev():
    _write_in("/dev")


@probe
def see_the_machines_sysfs():
    list(Path("/sys/kernel").iterdir())


@probe
def open_a_disk():
    os.close(os.open(FACTS["disk"], os.O_RDONLY))


@probe
def make_a_device():
    path = Path(FACTS["scratch"], "disk")
    os.mknod(path, 0o600 | stat.S_IFBLK, os.makedev(7, 0))
    path.unlink()


@probe
def read_the_kernels_messages():
    os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))


@probe
def change_the_core_pattern():
    path = Path("/proc/sys/kernel/core_pattern")
    text = path.read_text()
    with path.open("w") as file:
        file.write(text)


@probe
def reach_for_the_machines_caches():
    Path("/proc/sys/vm/drop_caches").open("w").close()


@probe
def leave_the_group():
    Path(FACTS["group"]).open("w").close()


@probe
def open_by_handle():
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    call((303, 264), -100, b"/", handle, ctypes.byref(ctypes.c_int()), 0)


@probe
def give_a_file_to_root():
    path = Path(FACTS["scratch"], "given")
    path.write_text("x")
    try:
        os.chown(path, 0, 0)
    finally:
        path.unlink()
