"""Checks whether our jobs can run on a cluster, when it is added and on request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shoal.core.errors import Refused
from shoal.engines.slurm import text
from shoal.engines.slurm.request import Requests
from shoal.engines.slurm.site import Site
from shoal.engines.slurm.text import Host

_ON_A_NODE = """
import socket, sys
from urllib.parse import urlsplit
try:
    import shoal.engines.slurm.step
    if sys.argv[1]:
        to = urlsplit(sys.argv[1])
        socket.create_connection((to.hostname, to.port or (443 if to.scheme == "https" else 80)), 10).close()
except ImportError as error:
    print(f"problem: {sys.executable} on a compute node cannot import Shoal: {error}")
except OSError as error:
    print(f"problem: a compute node cannot reach this server at {sys.argv[1]}: {error}")
"""
_IMMEDIATE_S = 15
"""Seconds to wait for the test task. If a full cluster cannot start it by then, the test is skipped without an error."""


def check_programs(site: Site, requests: Requests) -> None:
    """Check Slurm's programs and ours where Slurm's programs run; raise an error with the first problem."""
    version = text.read_version(site.run(["sinfo", "--version"]))
    if version is not None and version < text.LEAST_VERSION:
        raise Refused(f"Slurm {version[0]}.{version[1]:02} is too old; version 22.05 or later is required")
    site.shell('mkdir -p "$1" && test -w "$1"', requests.nodes_dir)
    site.run([requests.python, "-c", "import shoal.engines.slurm.step"])


def try_out(site: Site, requests: Requests, kind: str, hosts: Sequence[Host], url: str | None) -> None:
    """Check that Slurm accepts a job, and that a compute node can run our program and reach the server; raise if not."""
    resources = requests.resources(kind, 1, 1, hosts)
    site.run(["sbatch", "--test-only", *resources], b"#!/bin/sh\n")
    step = [requests.python, "-c", _ON_A_NODE, url or ""]
    srun = ["srun", f"--immediate={_IMMEDIATE_S}", "--job-name=shoal-check", f"--chdir={requests.nodes_dir}"]
    said = site.shell('"$@" 2>&1 || true', *srun, *resources, *step)
    if found := re.search(r"^problem: (.*)$", said, re.MULTILINE):
        raise Refused(found[1])
    if "execve" in said:
        raise Refused(f"compute nodes have no {requests.python}; set an interpreter that they have with --python")
