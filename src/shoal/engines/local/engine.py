"""The local engine, which is the default: agents are processes of this machine; nothing to install.

An agent has a session of its own, so it outlives the server. The file `agent.json` in its directory (pid, create_time, boot_id)
distinguishes a running agent from a stale pid after a reboot.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil

from shoal.core.agents import Launch
from shoal.core.directory_identity import is_copied_node
from shoal.core.faults import out_of_space
from shoal.core.private import write_private
from shoal.engines.base import AgentState, Command, Engine, Gang, Machine
from shoal.engines.device_slots import DeviceSlots
from shoal.engines.identity import holder
from shoal.engines.local.prefork import PreforkParent, WarmAgent

logger = logging.getLogger(__name__)
MACHINE = "local"
_SIGNATURE, _LAUNCH, _RESULT = "agent.json", "launch.json", "result.json"


class LocalEngine(Engine):
    """Engine that runs agents as processes of this machine."""

    def __init__(
        self,
        nodes_dir: Path,
        *,
        slots: int | None = None,
        machine: str = MACHINE,
        python: str = sys.executable,
        agent_env: dict[str, str] | None = None,
        prefork: PreforkParent | None = None,
    ):
        """Set up the engine. `slots` is the number of slots; None means as many as are detected.

        `prefork` starts the prefork parent for agents. With another name than `local` the engine presents
        itself as another machine, whose home is the parent of `nodes_dir`.
        """
        self._nodes_dir, self._machine = nodes_dir, machine
        self._python = python
        self._agent_env = agent_env or {}
        self._prefork = prefork
        self._children: dict[tuple[str, int], subprocess.Popen[bytes] | WarmAgent] = {}
        self._salvaging: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        order_file = nodes_dir.parent / "devices.json"
        self._slots = DeviceSlots(slots, order_file=order_file, keep_order=order_file.exists() and bool(self.adopt()))

    def probe(self) -> list[str]:
        free = self._free_bytes()
        return [f"only {free >> 20} MiB free on the disk of {self._nodes_dir}"] if free < 1 << 30 else []

    def capacity(self) -> list[Machine]:
        home = None if self._machine == MACHINE else str(self._nodes_dir.parent)
        found, free = self._slots.now(), self._free_bytes()
        return [
            Machine(
                name=self._machine,
                kind=found.kind,
                slots=found.count,
                problems=[*self.probe(), *found.problems],
                refuses=out_of_space(free),
                home=home,
                inventory=found.devices,
                gauges=found.gauges,
            )
        ]

    def _free_bytes(self) -> int:
        return shutil.disk_usage(_existing(self._nodes_dir)).free

    def plan(self, gang: Gang) -> list[Command]:
        return [
            Command(machine=n.machine, argv=[self._python, "-m", "shoal.agent", str(self._launch_file(n))])
            for n in gang.nodes
        ]

    def start(self, gang: Gang) -> None:
        self._drop_ended()
        started = []
        warm = True
        try:
            for launch, command in zip(gang.nodes, self.plan(gang), strict=True):
                key = (gang.attempt_id, launch.node)
                if self.status(*key) is AgentState.ALIVE:
                    continue
                self._write_launch(launch)
                agent = self._warm_agent(launch) if warm else None
                warm = agent is not None  # the nodes of one job are not jobs that follow each other
                child = agent or self._spawn(command.argv, self._dir(*key))
                started.append(key)
                with self._lock:
                    self._children[key] = child
        except BaseException:
            for key in started:
                self._kill(*key)
            raise

    def status(self, attempt_id: str, node: int) -> AgentState:
        with self._lock:
            child = self._children.get((attempt_id, node))
            if child is not None:
                return AgentState.ALIVE if child.poll() is None else AgentState.GONE
        directory = self._dir(attempt_id, node)
        if self._agent(directory):
            return AgentState.ALIVE
        # Without that file nothing was started: the server writes it first.
        return AgentState.GONE if (directory / _LAUNCH).is_file() else AgentState.UNKNOWN

    def last_word(self, attempt_id: str, node: int) -> str | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            reason = json.loads((self._dir(attempt_id, node) / _RESULT).read_text())["reason"]
            return str(reason) if reason else None
        return None

    def salvage(self, attempt_id: str, node: int) -> None:
        key, directory = (attempt_id, node), self._dir(attempt_id, node)
        with self._lock:
            running = self._salvaging.get(key)
            if (running is not None and running.poll() is None) or not directory.is_dir():
                return
            if is_copied_node(directory):  # recovery would kill the original's workers and report for them
                return
            argv = [self._python, "-m", "shoal.agent", "--salvage", str(directory)]
            self._salvaging[key] = self._spawn(argv, directory)

    def cancel(self, attempt_id: str) -> None:
        for directory in self._nodes_dir.glob(f"{attempt_id}.*"):
            node = int(directory.name.rpartition(".")[2])
            self._kill(attempt_id, node)
            self.salvage(attempt_id, node)

    def adopt(self) -> set[str]:
        if not self._nodes_dir.is_dir():
            return set()
        return {d.name.rpartition(".")[0] for d in self._nodes_dir.iterdir() if self._agent(d)}

    def clean(self, attempt_id: str) -> None:
        for directory in self._nodes_dir.glob(f"{attempt_id}.*"):
            key = (attempt_id, int(directory.name.rpartition(".")[2]))
            with self._lock:
                self._children.pop(key, None)
                self._salvaging.pop(key, None)
            shutil.rmtree(directory, ignore_errors=True)

    def _drop_ended(self) -> None:
        """Forget agents and recoveries that have ended; until they are waited for, each holds a process id or a descriptor."""
        with self._lock:
            self._children = {key: child for key, child in self._children.items() if child.poll() is None}
            self._salvaging = {key: child for key, child in self._salvaging.items() if child.poll() is None}

    def _agent(self, directory: Path) -> psutil.Process | None:
        """Return the running agent of a node, or None; a copied directory has none."""
        return None if is_copied_node(directory) else holder(directory / _SIGNATURE)

    def _dir(self, attempt_id: str, node: int) -> Path:
        return self._nodes_dir / f"{attempt_id}.{node}"

    def _launch_file(self, launch: Launch) -> Path:
        return Path(launch.work_dir) / _LAUNCH

    def _write_launch(self, launch: Launch) -> None:
        write_private(self._launch_file(launch), launch.model_dump_json())

    def _warm_agent(self, launch: Launch) -> WarmAgent | None:
        if self._prefork is None or launch.python != self._python:
            return None
        with self._lock:
            return self._prefork.agent(self._launch_file(launch), launch.cpu_threads)

    def _spawn(self, argv: list[str], directory: Path) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if k not in ("SHOAL_API_KEY", "SHOAL_URL")} | self._agent_env
        with (directory / "agent.log").open("ab") as log:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory, env=env, start_new_session=True
            )

    def _kill(self, attempt_id: str, node: int) -> None:
        with self._lock:
            child = self._children.get((attempt_id, node))
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if child is not None:
                child.kill()
                child.wait()
            elif agent := self._agent(self._dir(attempt_id, node)):
                agent.send_signal(signal.SIGKILL)
                agent.wait(timeout=10)


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
