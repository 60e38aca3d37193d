"""The Slurm engine: one Slurm job per attempt, one task per node, the usual agent. Slurm's own queue decides when and where.

The output of squeue and sinfo is cached and refreshed in the background, each at most every 10 seconds, so that callers do not
wait for Slurm and its controller is not burdened. While Slurm does not answer, no agent is considered dead; agents report to the server themselves.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal.agent.devices.device import Device
from shoal.core.errors import Refused, ShoalError, Unreachable
from shoal.engines.base import AgentState, Command, Engine, Gang, Machine
from shoal.engines.slurm import text
from shoal.engines.slurm.addresses import ServerUrls
from shoal.engines.slurm.cached_queries import CachedQuery
from shoal.engines.slurm.options import SlurmOptions
from shoal.engines.slurm.probe import check_programs, try_out
from shoal.engines.slurm.request import Requests, folder
from shoal.engines.slurm.site import Site
from shoal.engines.slurm.step import GONE
from shoal.engines.slurm.text import Host, Queued

JOBS_EVERY_S = 1.0
HOSTS_EVERY_S = 10.0
SALVAGE_EVERY_S = 60.0
_FIRST_QUERY_S = 5.0
_MOST_SHOWN = 3
_QUERY_JOBS = f"""
[ "$2" = no ] || squeue --noheader --me --format='{text.QUEUE_FORMAT}' || exit 1
cd "$1" 2>/dev/null || exit 0
echo =; printf '%s\\n' *.[0-9]*
echo =; printf '%s\\n' */{GONE}
echo =; df -Pk . 2>/dev/null
"""
"""Shell script that prints our jobs, the folders of nodes, those of ended nodes, and the free space of the shared file system."""
_HOSTS = ["sinfo", "--noheader", "--Node", f"--format={text.NODE_FORMAT}"]
_CANCEL = """
scancel --full --signal=KILL "$1" 2>/dev/null
scancel "$1" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do
    squeue --noheader --jobs="$1" 2>/dev/null | grep -q . || break
    sleep 0.2
done
"""
"""Shell script that ends a job: the first scancel kills what runs, the second removes what waits. Both fail if it has ended."""
_CLEAN = 'cd "$1" 2>/dev/null && rm -rf -- "$2".[0-9]* || true'
_SALVAGE = 'flock -w 120 "$2/lock" true; exec "$1" -m shoal.agent --salvage "$2"'
"""Shell script that starts a recovery. It first waits for the agent's lock, because Slurm takes a moment to end an agent."""


class SlurmEngine(Engine):
    """Engine that runs agents as tasks of Slurm jobs."""

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
        """Set up the engine. `home` is Shoal's directory on the cluster's shared file system.

        `url_for` returns the URL at which a given address reaches this server.
        """
        self.name, self.options, self.home = name, options, home
        self._site = site
        self._urls = ServerUrls(options.url, url_for)
        self._requests = Requests(
            engine=name,
            options=options,
            nodes_dir=f"{home}/nodes",
            python=options.python or sys.executable,
            env=agent_env or {},
        )
        self._queue: dict[str, Queued] = {}
        self._nodes: set[str] = set()
        """Names of the node directories that exist."""
        self._gone: set[str] = set()
        """Names of the node directories whose agent has ended."""
        self._hosts: list[Host] = []
        self._full = ""
        """Why no node can start: the shared file system has no room for its files. Empty if it has."""
        self._salvaged_at: dict[str, float] = {}
        self._changes = 0
        """Number of changes we made ourselves; an answer of squeue from before the last one is discarded."""
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        """Time of the last answer of squeue. The folders are listed more often: they tell which agents have ended."""
        self._jobs_query = CachedQuery(self._query_jobs, JOBS_EVERY_S)
        self._hosts_query = CachedQuery(self._query_hosts, HOSTS_EVERY_S)

    def prepare(self) -> None:
        """Fill the caches before the first use, for at most _FIRST_QUERY_S each."""
        for thread in [query.refresh() for query in (self._hosts_query, self._jobs_query)]:
            if thread is not None:
                thread.join(_FIRST_QUERY_S)

    def probe(self) -> list[str]:
        return list(dict.fromkeys(p for p in (self._jobs_query.problem, self._hosts_query.problem) if p))

    def capacity(self) -> list[Machine]:
        """Return all hosts of Slurm, even if others use them: only Slurm knows which job is next."""
        self._hosts_query.refresh()
        problem = self._hosts_query.problem
        with self._lock:
            hosts = list(self._hosts)
        return [self._machine(host, problem) for host in hosts if self._slots(host)]

    def plan(self, gang: Gang) -> list[Command]:
        """Return the single sbatch command that starts all nodes, once per node."""
        argv = self._requests.sbatch(gang, self._hosts)
        return [Command(machine=launch.machine, argv=argv) for launch in gang.nodes]

    def start(self, gang: Gang) -> None:
        self._jobs_query.now()
        if self._jobs_query.problem:
            self._hosts_query.problem = (
                self._jobs_query.problem
            )  # prevents further placement here until Slurm answers again
            raise Unreachable(self._jobs_query.problem)
        with self._lock:
            hosts = self._hosts
            if gang.attempt_id in self._queue:
                return
        try:
            self._site.put(self._requests.nodes_dir, self._requests.files(gang))
            said = self._site.run(self._requests.sbatch(gang, hosts), self._requests.script(gang, hosts).encode())
        except ShoalError:
            self._undo_submission(gang.attempt_id)
            raise
        job_id = said.strip().splitlines()[-1].partition(";")[0]
        with self._lock:
            self._changes += 1
            self._queue[gang.attempt_id] = Queued(job_id, "PENDING", "", "None")
            self._nodes |= {folder(launch) for launch in gang.nodes}

    def status(self, attempt_id: str, node: int) -> AgentState:
        self._jobs_query.refresh()
        name = f"{attempt_id}.{node}"
        with self._lock:
            job = self._queue.get(attempt_id)
            if job is not None and name in self._nodes and name not in self._gone:
                return AgentState.WAITING if job.waits else AgentState.ALIVE
            if name in self._nodes:
                return AgentState.GONE
        # Before Slurm has answered for the first time, an existing node may be alive.
        return (
            AgentState.ALIVE
            if not self._jobs_query.known and self._site.may_have(self._requests.nodes_dir, name)
            else AgentState.UNKNOWN
        )

    def waits(self, attempt_id: str) -> str | None:
        self._jobs_query.refresh()
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
        self._site.start_detached(["sh", "-c", _SALVAGE, "sh", self._requests.python, work], f"{work}/agent.log")

    def cancel(self, attempt_id: str) -> None:
        if self._jobs_query.known and not self._knows(attempt_id):
            return
        self._jobs_query.now()
        with self._lock:
            job = self._queue.get(attempt_id)
            nodes = [int(name.rpartition(".")[2]) for name in self._nodes if name.rpartition(".")[0] == attempt_id]
        if job is not None:
            self._site.shell(_CANCEL, job.job_id)
            self._asked_at = float("-inf")
            if not job.waits:
                for node in nodes:
                    self.salvage(attempt_id, node)
        self._jobs_query.now()
        if self._jobs_query.problem:
            raise Unreachable(self._jobs_query.problem)

    def adopt(self) -> set[str]:
        self._jobs_query.now()
        with self._lock:
            return self._queue.keys() & {name.rpartition(".")[0] for name in self._nodes - self._gone}

    def clean(self, attempt_id: str) -> None:
        self._remove(attempt_id)

    def check(self) -> list[str]:
        try:
            check_programs(self._site, self._requests)
            for query in (self._hosts_query, self._jobs_query):
                query.now()
            with self._lock:
                hosts = [host for host in self._hosts if self._slots(host)]
            if problems := self.probe() or self._without_hosts(hosts):
                return problems
            best = next(host for host in hosts if host.state != "lost")
            try_out(self._site, self._requests, self._machine(best, None).kind, hosts, self._urls.url(best.name))
        except ShoalError as error:
            return [error.message]
        return []

    def _without_hosts(self, hosts: list[Host]) -> list[str]:
        if not hosts:
            where = f"partition '{self.options.partition}'" if self.options.partition else "default partition"
            return [f"Slurm's {where} has no node with a slot in it: see sinfo"]
        lost = [f"{host.name}: {host.problem}" for host in hosts if host.state == "lost"]
        return lost[:_MOST_SHOWN] if len(lost) == len(hosts) else []

    def _slots(self, host: Host) -> int:
        return host.gpus or host.cpus // self.options.cpus_per_slot

    def _machine(self, host: Host, problem: str | None) -> Machine:
        return Machine(
            name=f"{self.name}:{host.name}",
            kind=self.options.gpus if host.gpus else "cpu",
            slots=self._slots(host),
            state="lost" if problem else host.state,
            problems=[p for p in (problem or host.problem, self._full) if p],
            refuses=self._full,
            home=self.home,
            python=self._requests.python,
            url=self._urls.url(host.name),
            cores=host.cpus,
            inventory=tuple(
                Device(kind=self.options.gpus, index=slot, model=model) for slot, model in enumerate(host.types)
            )
            if any(host.types)
            else (),
        )

    def _undo_submission(self, attempt_id: str) -> None:
        """Undo a failed submission: sbatch may have created the job even so, because it stops waiting when Slurm is busy."""
        with suppress(ShoalError):
            self._site.shell('scancel --user="$(id -un)" --name="$1"', f"{text.NAME_PREFIX}{attempt_id}")
            self._site.shell(_CLEAN, self._requests.nodes_dir, attempt_id)

    def _remove(self, attempt_id: str) -> None:
        """Remove the files of an attempt, after a check that its id is safe in a shell pattern."""
        if not attempt_id.replace("_", "").isalnum():
            raise Refused(f"{attempt_id!r} is not an attempt id.")
        if self._knows(attempt_id) or not self._jobs_query.known:
            self._site.shell(_CLEAN, self._requests.nodes_dir, attempt_id)
        with self._lock:
            self._changes += 1
            self._queue.pop(attempt_id, None)
            self._nodes = {n for n in self._nodes if n.rpartition(".")[0] != attempt_id}
            self._salvaged_at = {n: at for n, at in self._salvaged_at.items() if n in self._nodes}

    def _knows(self, attempt_id: str) -> bool:
        with self._lock:
            return attempt_id in self._queue or any(n.rpartition(".")[0] == attempt_id for n in self._nodes)

    def _query_jobs(self) -> None:
        with self._lock:
            changes = self._changes
        asked_at = time.monotonic()
        is_due = asked_at - self._asked_at >= self.options.squeue_every_s
        answer = self._site.shell(_QUERY_JOBS, self._requests.nodes_dir, "yes" if is_due else "no")
        queue, _, folders = answer.partition("=\n")
        nodes, _, rest = folders.partition("=\n")
        gone, _, disk = rest.partition("=\n")
        self._full = text.read_full(disk)
        with self._lock:
            if changes == self._changes:
                if is_due:
                    self._asked_at = asked_at
                    self._queue = text.read_queue(queue)
                self._nodes = {name for name in nodes.splitlines() if "*" not in name}
                self._gone = {name.rpartition("/")[0] for name in gone.splitlines() if "*" not in name}

    def _query_hosts(self) -> None:
        hosts = self._urls.find(text.read_hosts(self._site.run(_HOSTS), self.options.partition))
        with self._lock:
            self._hosts = hosts
