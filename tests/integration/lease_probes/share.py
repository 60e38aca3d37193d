"""More rights, and more of everything than one has rented."""

import os
import resource
import signal
import time
from pathlib import Path

from hostile import FACTS, MB, fill, in_child, probe


@probe
def become_root():
    os.setresuid(0, 0, 0)


@probe
def take_other_groups():
    os.setgroups([0])


@probe
def take_all_processors():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    os.setpriority(os.PRIO_PROCESS, 0, before)


@probe
def leave_core_dumps():
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, before)


@probe
def have_more_processes_than_allowed():
    pids = []
    try:
        for _ in range(FACTS["pids"] + 20):
            pid = os.fork()
            if pid == 0:
                time.sleep(60)
                os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@probe
def have_more_memory_than_allowed():
    in_child(lambda: bytearray(os.urandom(MB) * (FACTS["memory_mb"] + 50)))


@probe
def have_more_disk_than_allowed():
    fill(f"{FACTS['scratch']}/large", (FACTS["disk_mb"] + 10) * MB)


@probe
def have_a_larger_file_than_the_disk():
    path = Path(FACTS["scratch"], "sparse")
    try:
        with path.open("wb") as file:
            file.truncate((FACTS["disk_mb"] + 10) * MB)
    finally:
        path.unlink(missing_ok=True)


@probe
def fill_the_temporary_folder():
    fill("/tmp/shoal-probe-large", (FACTS["tmp_mb"] + 5) * MB)


@probe
def fill_the_shared_memory():
    fill("/dev/shm/shoal-probe-large", (FACTS["shm_mb"] + 5) * MB)
