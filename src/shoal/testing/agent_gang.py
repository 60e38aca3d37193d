"""Agents of one attempt as real processes, and the small server they connect to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from shoal.agent.node.workdir import marked_processes
from shoal.core.agents import Launch
from shoal.testing.agent_server import AgentServer
from shoal.testing.forks import AGENT, Fork
from shoal.testing.patience import patient


class Gang:
    """Agents of one attempt. `env` is added to their environment, `reply` to the server's answer to a join."""

    slot_kind = "cpu"

    def __init__(
        self, folder: Path, cache: Path, entry: list[str], files: dict[str, Any], env: dict[str, str], **reply: Any
    ):
        self.folder, self.cache, self.env = folder, cache, env
        folder.mkdir()
        (folder / "server").mkdir()
        self.attempt_id = f"att_{folder.name}_{os.getpid()}"  # unique among all test runs on this machine
        self.server = AgentServer(folder / "server", entry, files=files, **reply)
        self.agents: list[Fork] = []
        self.hide: list[str] = []
        self.given: dict[str, Any] = {}
        """Further fields of the launch files."""

    def start(self) -> Gang:
        self.agents = [self.start_node(n) for n in range(self.server.reply.num_nodes)]
        return self

    def launch_file(self, node: int) -> Path:
        accels = self.server.reply.accels
        launch = Launch(
            job_id="job_1",
            job_name="test",
            attempt_id=self.attempt_id,
            attempt=1,
            node=node,
            token=f"token-{node}",
            url=self.server.url,
            server_file=str(self.server.server_file),
            work_dir=str(self.work_dir(node)),
            cache_dir=str(self.cache),
            python=sys.executable,
            machine="local",
            slots=list(range(node * accels, (node + 1) * accels)),
            slot_kind=self.slot_kind,
            hide=self.hide,
            **self.given,
        )
        path = self.work_dir(node) / "launch.json"
        path.parent.mkdir(exist_ok=True)
        path.touch(0o600)
        path.write_text(launch.model_dump_json())
        return path

    def work_dir(self, node: int = 0) -> Path:
        return self.folder / f"node{node}"

    def start_node(self, node: int) -> Fork:
        return self._agent(str(self.launch_file(node)))

    def salvage(self, node: int = 0) -> int:
        return self._agent("--salvage", str(self.work_dir(node))).wait(patient(60))

    def _agent(self, *args: str) -> Fork:
        env = {**os.environ, "SHOAL_API_KEY": "not-for-jobs", **self.env}
        return Fork([sys.executable, "-m", "shoal.agent", *args], modules=AGENT, env=env, stdin=subprocess.DEVNULL)

    def finish(self, timeout_s: float = 60.0) -> list[int]:
        return [agent.wait(patient(timeout_s)) for agent in self.agents]

    def left(self) -> list[int]:
        """Return the pids of processes of this attempt that still run, without the agents."""
        return [pid for node in range(self.server.reply.num_nodes) for pid in marked_processes(self.attempt_id, node)]

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        for pid in self.left():
            os.kill(pid, 9)
        self.server.stop()
