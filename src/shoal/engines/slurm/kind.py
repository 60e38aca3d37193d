"""Slurm clusters as engines that an admin adds."""

from __future__ import annotations

import os
from typing import Any

from shoal.core.errors import UsageError
from shoal.engines.base import Engine
from shoal.engines.kinds import AddedKind, EngineHost
from shoal.engines.slurm.options import JOB_OPTIONS, SlurmOptions

_PASSED_ON = ("SHOAL_SANDBOX", "SHOAL_LOG_LEVEL")
"""Environment variables of the server that are passed on to agents."""


class SlurmKind(AddedKind):
    """Agents as tasks of Slurm jobs, through Slurm's own queue."""

    name, title = "slurm", "Slurm"
    options = SlurmOptions
    job_options = JOB_OPTIONS
    flags = {"url": "server_url"}
    columns = ("partition", "login")
    examples = """shoal engine add slurm
shoal engine add slurm --partition gpu --account vision \\
    --extra-args "--time=8:00:00 --mem-per-cpu=4G"
shoal engine add slurm --name hpc --login ada@login.example.org \\
    --home /shared/ada/shoal --python /shared/ada/venv/bin/python"""

    def check_options(self, options: SlurmOptions) -> None:
        if options.login and not options.home:
            raise UsageError(
                "With --login, a directory on the cluster's shared file system is needed.",
                hint=f"shoal engine add slurm --login {options.login} --home /shared/shoal --python /shared/venv/bin/python",
            )

    def open(self, name: str, options: Any, host: EngineHost) -> Engine:
        from shoal.engines.slurm.engine import SlurmEngine
        from shoal.engines.slurm.site import Site

        return SlurmEngine(
            name,
            options,
            home=options.home or str(host.layout.root / "engines" / name),
            site=Site(options.login, key=options.key, ssh_dir=host.layout.server_dir / "ssh"),
            agent_env=dict(host.agent_env) | {key: os.environ[key] for key in _PASSED_ON if key in os.environ},
            url_for=host.url_for,
        )
