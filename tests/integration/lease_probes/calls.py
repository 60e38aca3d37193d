"""System calls that open doors."""

import ctypes
import fcntl
import os
import signal
import struct

from hostile import FACTS, LIBC, call, in_child, probe


@probe
def mount_a_file_system():
    place = FACTS["scratch"].encode()
    if LIBC.mount(b"tmpfs", place, b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")
    LIBC.umount2(place, 0)


@probe
def open_a_file_system():
    os.close(call(430, b"tmpfs", 0))


@probe
def clone_a_tree_of_mounts():
    os.close(call(428, -100, b"/", 0x80001))


@probe
def make_a_user_namespace():
    in_child(lambda: call((272, 97), 0x10000000))


@probe
def make_a_mount_namespace():
    in_child(lambda: call((272, 97), 0x00020000))


@probe
def clone_into_a_user_namespace():
    pid = call((56, 220), 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


@probe
def enter_a_namespace():
    fd = os.open("/proc/self/ns/net", os.O_RDONLY)
    in_child(lambda: call((308, 268), fd, 0))
    os.close(fd)


@probe
def change_the_root():
    in_child(lambda: os.chroot(FACTS["scratch"]))


@probe
def load_a_program_into_the_kernel():
    attributes = ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 4, 1, 0).ljust(72, b"\0"), 72)
    os.close(call((321, 280), 0, attributes, 72))


@probe
def count_the_kernels_events():
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 0).ljust(112, b"\0"), 112)
    os.close(call((298, 241), attributes, 0, -1, -1, 0))


@probe
def reach_the_kernels_keys():
    call((250, 219), 0, -3, 1)


@probe
def set_up_a_ring():
    os.close(call(425, 4, ctypes.create_string_buffer(120)))


@probe
def catch_page_faults():
    os.close(call((323, 282), 0))


@probe
def rename_the_machine():
    name = os.uname().nodename.encode()
    call((170, 161), name, len(name))


@probe
def read_the_kernels_log():
    call((103, 116), 10, None, 0)


@probe
def switch_off_randomness_of_addresses():
    in_child(lambda: call((135, 92), 0x0040000))


@probe
def type_into_a_terminal():
    _, end = os.openpty()
    fcntl.ioctl(end, 0x5412, b"x")
