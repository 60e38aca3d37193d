"""Hostile things that were once seen to work from a job: the server's keys, other people's code, data, tokens and processes."""

import ctypes
import json
import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

from hostile import FACTS, LIBC, probe


def _read(name):
    if b"canary" not in Path(FACTS[name]).read_bytes():
        raise OSError("it holds something else")


def _plant(folder):
    path = Path(FACTS[folder]) / "planted"
    path.write_text("x")
    path.unlink()


@probe
def read_the_key_of_all_secrets():
    _read("secret_key")


@probe
def read_the_database():
    _read("database")


@probe
def list_the_data_directory():
    list(Path(FACTS["home"]).iterdir())


@probe
def read_another_jobs_token():
    _read("their_launch")


@probe
def read_the_token_of_its_own_agent():
    if FACTS["token"] not in Path(FACTS["own_launch"]).read_text():
        raise OSError("it holds something else")


@probe
def read_a_chunk_of_the_store():
    _read("chunk")


@probe
def write_into_the_store():
    _plant("store")


@probe
def read_another_jobs_source():
    _read("their_source")


@probe
def write_into_another_jobs_checkpoints():
    _plant("their_output")


@probe
def read_another_workspaces_dataset():
    _read("their_dataset")


@probe
def rewrite_another_workspaces_dataset():
    path = Path(FACTS["their_dataset"])
    status = path.stat()
    with path.open("r+b") as file:
        file.write(b"C")
    with path.open("r+b") as file:
        file.write(b"c")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@probe
def rewrite_its_own_dataset():
    path = Path(FACTS["own_dataset"])
    text = path.read_bytes()
    with path.open("r+b") as file:
        file.write(text)


@probe
def plant_a_package_in_another_environment():
    _plant("their_environment")


@probe
def plant_a_wheel_in_another_workspaces_cache():
    _plant("pip_cache")


@probe
def read_the_volume_of_a_lease():
    _read("volume")


@probe
def read_the_token_of_ray():
    _read("ray_token")


@probe
def write_into_the_server_users_home():
    _plant("user_home")


@probe
def read_the_server_users_ssh_key():
    _read("ssh_key")


@probe
def unmount_what_hides_the_server():
    if LIBC.umount2(os.fsencode(FACTS["mounted"]), 2):
        raise OSError(ctypes.get_errno(), "umount")


@probe
def forge_the_agents_records():
    _plant("outbox")


@probe
def forge_the_result():
    path = Path(FACTS["own_folder"]) / "result.json"
    with path.open("a"):
        pass


@probe
def signal_the_agent():
    os.kill(FACTS["agent"], signal.SIGCONT)


@probe
def read_the_agents_environment():
    if b"not-for-jobs" not in Path(f"/proc/{FACTS['agent']}/environ").read_bytes():
        raise OSError("another process has that number")


@probe
def find_the_agents_token_in_its_own_environment():
    if not any(FACTS["token"] == value for value in os.environ.values()):
        raise OSError("it is not there")


@probe
def join_again_with_the_token():
    """Outside, the token is in the launch file; inside, it cannot be had."""
    token = json.loads(Path(FACTS["own_launch"]).read_text())["token"]
    if not token:
        raise OSError("no token")


@probe
def talk_to_the_machines_services():
    for path in ("/run/dbus/system_bus_socket", "/var/run/docker.sock", FACTS["service"]):
        if Path(path).exists():
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(path)
            return
    raise OSError("none is there")


@probe
def reach_another_server_by_the_forwarded_port():
    """The way to the server leads to the server only, whatever the request says."""
    request = urllib.request.Request(f"http://127.0.0.1:{FACTS['port']}/", headers={"Host": "x"})
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=2)
    except urllib.error.HTTPError:
        return
    except urllib.error.URLError as error:
        raise OSError(str(error)) from None
    except OSError as error:
        if isinstance(error, (ConnectionResetError, TimeoutError)):
            return  # something listens there
        raise
