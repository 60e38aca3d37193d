"""Other processes, other jobs' ports, and the network around."""

import ctypes
import os
import socket
import subprocess
from pathlib import Path

from hostile import FACTS, LIBC, call, probe


@probe
def see_another_process():
    os.kill(FACTS["victim"], 0)


@probe
def read_another_process_environment():
    if b"CANARY" not in Path(f"/proc/{FACTS['victim']}/environ").read_bytes():
        raise OSError("another process has that number")


@probe
def enter_another_process_root():
    list(Path(f"/proc/{FACTS['victim']}/root").iterdir())


@probe
def open_another_process_memory():
    os.close(os.open(f"/proc/{FACTS['victim']}/mem", os.O_RDONLY))


@probe
def trace_a_process():
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        if LIBC.ptrace(16, sleeper.pid, 0, 0):
            raise OSError(ctypes.get_errno(), "ptrace")
        os.waitpid(sleeper.pid, 0)
        LIBC.ptrace(17, sleeper.pid, 0, 0)
    finally:
        sleeper.kill()
        sleeper.wait()


@probe
def read_a_process_memory():
    buffer = ctypes.create_string_buffer(b"secret")
    out = ctypes.create_string_buffer(8)
    ours = (ctypes.c_size_t * 2)(ctypes.addressof(out), 6)
    theirs = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 6)
    call((310, 270), os.getpid(), ours, 1, theirs, 1, 0)


@probe
def reach_another_jobs_port():
    socket.create_connection(("127.0.0.1", FACTS["port"]), timeout=2).close()


@probe
def reach_another_jobs_port_by_the_machines_address():
    socket.create_connection((FACTS["address"], FACTS["port"]), timeout=2).close()


@probe
def reach_an_abstract_socket():
    with socket.socket(socket.AF_UNIX) as end:
        end.connect("\0" + FACTS["abstract"])


@probe
def reach_a_named_socket():
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(FACTS["named"])


def _route_to(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((address, 80))


@probe
def have_a_route_to_the_metadata_service():
    _route_to("169.254.169.254")


@probe
def have_a_route_to_the_world():
    _route_to("1.1.1.1")


@probe
def open_a_raw_socket():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


@probe
def open_a_raw_ipv6_socket():
    socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6).close()


@probe
def open_a_packet_socket():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()


@probe
def talk_to_the_kernels_connector():
    socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 16).close()


def _ask_the_proxy(target):
    """Outside there is no proxy to ask: there it is enough that the address would take us."""
    if FACTS["proxy"]:
        with socket.create_connection(("127.0.0.1", FACTS["proxy"]), timeout=5) as end:
            end.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            answer = end.recv(100)
            if b" 200 " not in answer:
                raise OSError(answer.decode(errors="replace").split("\r\n")[0])
    elif "169.254" in target:
        _route_to("169.254.169.254")
    else:
        socket.create_connection(("127.0.0.1", FACTS["port"]), timeout=2).close()


@probe
def ask_the_proxy_for_loopback():
    _ask_the_proxy(f"127.0.0.1:{FACTS['port']}")


@probe
def ask_the_proxy_for_localhost():
    _ask_the_proxy(f"localhost:{FACTS['port']}")


@probe
def ask_the_proxy_for_loopback_in_disguise():
    _ask_the_proxy(f"2130706433:{FACTS['port']}")


@probe
def ask_the_proxy_for_mapped_loopback():
    _ask_the_proxy(f"[::ffff:127.0.0.1]:{FACTS['port']}")


@probe
def ask_the_proxy_for_nowhere():
    _ask_the_proxy(f"0.0.0.0:{FACTS['port']}")


@probe
def ask_the_proxy_for_the_metadata_service():
    _ask_the_proxy("169.254.169.254:80")
