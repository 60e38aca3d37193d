"""The Slurm engine: one Slurm job per attempt, one task per node, the same agent. Slurm's own queue decides when and where.

What squeue and sinfo say is remembered and asked again in the background, squeue at most once a second: whoever asks us never
waits for Slurm. While Slurm does not answer nothing is held dead; agents speak to the server by themselves.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal.core.engines import SlurmOptions
from shoal.core.errors import Refused, ShoalError, Unreachable
from shoal.engines.base import AgentState, Command, Engine, Gang, Machine
from shoal.engines.slurm import text
from shoal.engines.slurm.look import Look
from shoal.engines.slurm.request import Requests, folder
from shoal.engines.slurm.site import Site
from shoal.engines.slurm.step import GONE
from shoal.engines.slurm.text import Host, Queued
from shoal.engines.slurm.trial import check_programs, try_out
from shoal.engines.slurm.ways import Ways

JOBS_EVERY_S = 1.0
HOSTS_EVERY_S = 10.0
SALVAGE_EVERY_S = 60.0
_FIRST_LOOK_S = 5.0
_MOST_TOLD = 3
_LOOK = f"""
squeue --noheader --me --format='{text.QUEUE_FORMAT}' || exit 1
cd "$1" 2>/dev/null || exit 0
echo =; printf '%s\\n' *.[0-9]*
echo =; printf '%s\\n' */{GONE}
"""
_HOSTS = ["sinfo", "--noheader", "--Node", f"--format={text.NODE_FORMAT}"]
_CANCEL = """
scancel --full --signal=KILL "$1" 2>/dev/null
scancel "$1" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do
    squeue --noheader --jobs="$1" 2>/dev/null | grep -q . || break
    sleep 0.2
done
"""
"""The first ends what runs, at once; the second what waits. Of a job that has just ended, they know nothing any more."""
_CLEAN = 'cd "$1" 2>/dev/null && rm -rf -- "$2".[0-9]* || true'
_SALVAGE = 'flock -w 120 "$2/lock" true; exec "$1" -m shoal.agent --salvage "$2"'
"""The salvager does nothing while an agent still lives, and Slurm takes a moment to end one."""


class SlurmEngine(Engine):
    def __init__(
        self,
        name: str,
        options: SlurmOptions,
        *,
        home: str,
        site: Site,
        agent_env: dict[str, str] | None = None,
        url_for: Callable[[str], str] | None = None,
    ):
        """`home`: Shoal's directory on the cluster's shared file system. `url_for`: our server, as an address sees it."""
        self.name, self.options, self.home = name, options, home
        self._site = site
        self._ways = Ways(options.url, url_for)
        self._requests = Requests(
            engine=name,
            options=options,
            nodes_dir=f"{home}/nodes",
            python=options.python or sys.executable,
            env=agent_env or {},
        )
        self._queue: dict[str, Queued] = {}
        self._nodes: set[str] = set()
        """Directories of nodes, by name."""
        self._gone: set[str] = set()
        """Those whose agent has ended."""
        self._hosts: list[Host] = []
        self._salvaged_at: dict[str, float] = {}
        self._changes = 0
        """Of what we know without having been told: an older answer of squeue's must not undo it."""
        self._lock = threading.Lock()
        self._jobs_look = Look(self._look_at_jobs, JOBS_EVERY_S)
        self._hosts_look = Look(self._look_at_hosts, HOSTS_EVERY_S)

    def look(self) -> None:
        """See what there is before the first question comes, unless Slurm takes too long."""
        for thread in [look.refresh() for look in (self._hosts_look, self._jobs_look)]:
            if thread is not None:
                thread.join(_FIRST_LOOK_S)

    def probe(self) -> list[str]:
        return list(dict.fromkeys(p for p in (self._jobs_look.problem, self._hosts_look.problem) if p))

    def capacity(self) -> list[Machine]:
        """All that Slurm has, used by others or not: its queue is longer than our sight."""
        self._hosts_look.refresh()
        problem = self._hosts_look.problem
        with self._lock:
            hosts = list(self._hosts)
        return [self._machine(host, problem) for host in hosts if self._slots(host)]

    def plan(self, gang: Gang) -> list[Command]:
        """One sbatch for all of them."""
        argv = self._requests.sbatch(gang, self._hosts)
        return [Command(machine=launch.machine, argv=argv) for launch in gang.nodes]

    def start(self, gang: Gang) -> None:
        self._jobs_look.now()
        if self._jobs_look.problem:
            self._hosts_look.problem = self._jobs_look.problem  # nothing more is to be placed here until it is better
            raise Unreachable(self._jobs_look.problem)
        with self._lock:
            hosts = self._hosts
            if gang.attempt_id in self._queue:
                return
        try:
            self._site.put(self._requests.nodes_dir, self._requests.files(gang))
            said = self._site.run(self._requests.sbatch(gang, hosts), self._requests.script(gang, hosts).encode())
        except ShoalError:
            self._take_back(gang.attempt_id)
            raise
        job_id = said.strip().splitlines()[-1].partition(";")[0]
        with self._lock:
            self._changes += 1
            self._queue[gang.attempt_id] = Queued(job_id, "PENDING", "", "None")
            self._nodes |= {folder(launch) for launch in gang.nodes}

    def status(self, attempt_id: str, node: int) -> AgentState:
        self._jobs_look.refresh()
        name = f"{attempt_id}.{node}"
        with self._lock:
            job = self._queue.get(attempt_id)
            if job is not None and name in self._nodes and name not in self._gone:
                return AgentState.WAITING if job.waits else AgentState.ALIVE
            if name in self._nodes:
                return AgentState.GONE
        # Before Slurm has answered once: what is there lives, for all we know.
        return (
            AgentState.ALIVE
            if not self._jobs_look.known and self._site.may_have(self._requests.nodes_dir, name)
            else AgentState.UNKNOWN
        )

    def waits(self, attempt_id: str) -> str | None:
        self._jobs_look.refresh()
        with self._lock:
            job = self._queue.get(attempt_id)
        return job.why if job is not None and job.waits else None

    def salvage(self, attempt_id: str, node: int) -> None:
        name = f"{attempt_id}.{node}"
        work, now = f"{self._requests.nodes_dir}/{name}", time.monotonic()
        with self._lock:
            if name not in self._nodes or now - self._salvaged_at.get(name, -SALVAGE_EVERY_S) < SALVAGE_EVERY_S:
                return
            self._salvaged_at[name] = now
        self._site.leave_running(["sh", "-c", _SALVAGE, "sh", self._requests.python, work], f"{work}/agent.log")

    def cancel(self, attempt_id: str) -> None:
        if self._jobs_look.known and not self._knows(attempt_id):
            return
        self._jobs_look.now()
        with self._lock:
            job = self._queue.get(attempt_id)
            nodes = [int(name.rpartition(".")[2]) for name in self._nodes if name.rpartition(".")[0] == attempt_id]
        if job is not None:
            self._site.shell(_CANCEL, job.job_id)
            if not job.waits:
                for node in nodes:
                    self.salvage(attempt_id, node)
        self._jobs_look.now()
        if self._jobs_look.problem:
            raise Unreachable(self._jobs_look.problem)

    def adopt(self) -> set[str]:
        self._jobs_look.now()
        with self._lock:
            return self._queue.keys() & {name.rpartition(".")[0] for name in self._nodes - self._gone}

    def clean(self, attempt_id: str) -> None:
        self._remove(attempt_id)

    def check(self) -> list[str]:
        """All that keeps this engine from working, asked anew. May take as long as a job takes to start."""
        try:
            check_programs(self._site, self._requests)
            for look in (self._hosts_look, self._jobs_look):
                look.now()
            with self._lock:
                hosts = [host for host in self._hosts if self._slots(host)]
            if problems := self.probe() or self._without_hosts(hosts):
                return problems
            best = next(host for host in hosts if host.state != "lost")
            try_out(self._site, self._requests, self._machine(best, None).kind, hosts, self._ways.url(best.name))
        except ShoalError as error:
            return [error.message]
        return []

    def _without_hosts(self, hosts: list[Host]) -> list[str]:
        if not hosts:
            where = f"partition '{self.options.partition}'" if self.options.partition else "default partition"
            return [f"Slurm's {where} has no node with a slot in it: see sinfo"]
        lost = [f"{host.name}: {host.problem}" for host in hosts if host.state == "lost"]
        return lost[:_MOST_TOLD] if len(lost) == len(hosts) else []

    def _slots(self, host: Host) -> int:
        return host.gpus or host.cpus // self.options.cpus_per_slot

    def _machine(self, host: Host, problem: str | None) -> Machine:
        return Machine(
            name=f"{self.name}:{host.name}",
            kind=self.options.gpus if host.gpus else "cpu",
            slots=self._slots(host),
            state="lost" if problem else host.state,
            problems=[p for p in (problem or host.problem,) if p],
            home=self.home,
            python=self._requests.python,
            url=self._ways.url(host.name),
            cores=host.cpus,
        )

    def _take_back(self, attempt_id: str) -> None:
        """A job may have been made even if sbatch says otherwise: it gives up waiting when Slurm is busy."""
        with suppress(ShoalError):
            self._site.shell('scancel --user="$(id -un)" --name="$1"', f"{text.NAME_PREFIX}{attempt_id}")
            self._site.shell(_CLEAN, self._requests.nodes_dir, attempt_id)

    def _remove(self, attempt_id: str) -> None:
        """Attempt ids hold nothing a shell would take for more than it is."""
        if not attempt_id.replace("_", "").isalnum():
            raise Refused(f"{attempt_id!r} is no attempt.")
        if self._knows(attempt_id) or not self._jobs_look.known:
            self._site.shell(_CLEAN, self._requests.nodes_dir, attempt_id)
        with self._lock:
            self._changes += 1
            self._queue.pop(attempt_id, None)
            self._nodes = {n for n in self._nodes if n.rpartition(".")[0] != attempt_id}
            self._salvaged_at = {n: at for n, at in self._salvaged_at.items() if n in self._nodes}

    def _knows(self, attempt_id: str) -> bool:
        with self._lock:
            return attempt_id in self._queue or any(n.rpartition(".")[0] == attempt_id for n in self._nodes)

    def _look_at_jobs(self) -> None:
        with self._lock:
            changes = self._changes
        queue, _, folders = self._site.shell(_LOOK, self._requests.nodes_dir).partition("=\n")
        nodes, _, gone = folders.partition("=\n")
        with self._lock:
            if changes == self._changes:
                self._queue = text.read_queue(queue)
                self._nodes = {name for name in nodes.splitlines() if "*" not in name}
                self._gone = {name.rpartition("/")[0] for name in gone.splitlines() if "*" not in name}

    def _look_at_hosts(self) -> None:
        hosts = self._ways.find(text.read_hosts(self._site.run(_HOSTS), self.options.partition))
        with self._lock:
            self._hosts = hosts
