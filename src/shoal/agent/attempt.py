"""One node of one attempt, from the moment its gang is complete until the server knows how it ended."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.agent import preflight, runtime
from shoal.agent.commands import Commands
from shoal.agent.inputs import CHECKPOINT, Chunks, clear, fetch_mount, lay_out, source_key, write_source
from shoal.agent.limits import set_limits
from shoal.agent.lines import Redactor
from shoal.agent.link import Link
from shoal.agent.logs import DEFAULT_RATE_KB_S, Capture
from shoal.agent.node import LAUNCH, NotReady, WorkDir
from shoal.agent.progress import ProgressReader
from shoal.agent.reasons import explain, from_torchrun, last_error, refusal
from shoal.agent.reporting import Beats, Every, Orders
from shoal.agent.run_reports import RunReports
from shoal.agent.run_spool import LOOK_EVERY_S
from shoal.agent.sandbox import SETTING, Bind, Mode, Walls, choose, forget, wrap
from shoal.agent.shipping import Shipper
from shoal.agent.specs import specs
from shoal.agent.spool import Spool
from shoal.agent.wire import PUT_BACK, JoinReply, Launch
from shoal.agent.workers import TERM_SIGNALS, Action, LaunchFailed, Spec, Watch, Workers, wait_readable

if TYPE_CHECKING:
    from shoal.agent.keeper import Keeper
    from shoal.agent.seed import Seed
    from shoal.agent.workdir import Files, Workdir
    from shoal.store.cache import CacheUse

logger = logging.getLogger(__name__)

DELIVER_FOR_S = 7 * 86400.0
SYNC_EVERY_S = 1.0


class Node:
    def __init__(self, launch: Launch, join: JoinReply, work: WorkDir, link: Link, seed: Seed | None = None):
        self._launch, self._join, self._work, self._link = launch, join, work, link
        self._seed = seed
        self._orders = Orders()
        self._spools = {stream: Spool(work.spool(stream)) for stream in ("log", "system", "metric")}
        rate = int(os.environ.get("SHOAL_LOG_RATE_KB_S") or DEFAULT_RATE_KB_S)
        self._capture = Capture(self._spools["log"], Redactor(join.secrets.values()), rate)
        self._progress = ProgressReader()
        self._reports = RunReports(
            work, self._spools["metric"], link.another(), self._capture.say, Redactor(join.secrets.values())
        )
        self._beats = Beats(link, self._orders, self._report_progress)
        self._shipper = Shipper(link.another(), self._spools, self._capture.say)
        self._regular = [Every(SYNC_EVERY_S, self._sync)]
        self._workers = Workers(self._capture)
        self._ranks = range(launch.node * join.accels, (launch.node + 1) * join.accels)
        self._mode, self._also = Mode.REWRITE, ""
        self._python = launch.python
        self._uses: list[CacheUse] = []
        """The data of each mount; held, so that the cache keeps it."""
        self._laid_out_ns = 0
        """When the source was complete: what is newer in the working directory is the job's."""
        self._present: dict[str, Files] = {}
        """Checkpoints that were there before the workers started."""
        self._said: list[str] = []
        """Checkpoints that were put back."""

    def run(self) -> int:
        set_up_logging()
        for signum in TERM_SIGNALS:
            signal.signal(signum, lambda *_: self._orders.give(stop=True))
        self._orders.on_why = self._reports.say_why
        self._orders.on_command = Commands(self._launch, self._work, self._link, self._ranks, self._capture.say).take
        self._capture.watched_rank = self._ranks.start if self._launch.node == 0 else -1
        self._capture.on_line = lambda line: self._progress.feed(line, time.time())
        self._capture.start()
        for thread in (self._shipper, self._beats, *self._regular):
            thread.start()
        try:
            result = self._prepare_and_run()
        except Exception as error:
            logger.exception("the agent failed")
            result = ended(None, f"agent error: {type(error).__name__}: {error}")
        return self._finish(result)

    def _prepare_and_run(self) -> dict[str, Any]:
        try:
            self._prepare()
            watch = None if self._orders.any else Watch(self._launch_workers())
        except NotReady as error:
            return ended(1, str(error))
        except Exception as error:
            self._workers.kill()
            if not self._orders.any:
                logger.exception("cannot start")
                return ended(1, f"cannot start: {error}")
            watch = None
        if watch is None:
            return ended(None, "stopped before it started", told=True)
        self._beats.update(state="running", paths=self._mode.paths + self._also, put_back=self._said)
        self._start_sampling()
        keeper = self._start_keeper()
        self._start_reports(keeper)
        self._watch(watch, keeper)
        try:
            keeper.finish(all_well=watch.complete and not watch.lost_one)
        except OSError as error:  # its output cannot be read; how its workers ended is known all the same
            self._capture.say(f"[shoal] the last checkpoints could not be kept: {error}")
        return self._judge(watch)

    def _prepare(self) -> None:
        """All that must be on disk."""
        launch, join, work = self._launch, self._join, self._work
        cache = Path(launch.cache_dir)
        chunks = Chunks(launch, self._link, lambda: self._orders.any, join.neighbours)
        for folder in (work.tmp, work.spool("sdk")):
            folder.mkdir(parents=True, exist_ok=True)
        manifest = join.source or {"files": []}
        write_source(manifest, chunks, work.source)
        self._laid_out_ns = time.time_ns()
        self._uses = [fetch_mount(m, chunks, cache, self._capture.say) for m in join.mounts]
        self._mode = choose(cache)
        if (work.source / "requirements.txt").is_file():
            self._python = self._build(source_key(manifest))
        self._put_back(chunks)  # only now: what a job wrote must not decide what is installed

    def _build(self, source: str) -> str:
        """The interpreter with the packages of requirements.txt. `source` names the content of the source."""
        from shoal.agent.environment import Builder, remove_unused

        launch, join = self._launch, self._join
        pip_env = runtime.base_env(os.environ) | {
            k: v for k, v in (join.env | join.secrets).items() if k.startswith("PIP_")
        }
        builder = Builder(
            Path(launch.cache_dir),
            launch.python,
            self._capture.say,
            lambda: self._orders.any,
            walls=self._walls(),
            pip_cache=join.env.get("SHOAL_WORKSPACE", ""),
            allow_torch_change=join.allow_torch_change,
        )
        found = builder.interpreter(self._work.source, pip_env, source)
        remove_unused(Path(launch.cache_dir))
        return found

    def _walls(self) -> Walls:
        """Return the files this node's workers and builds must not see: the server's, and those of other attempts."""
        launch, work = self._launch, self._work
        hide = [work.root / LAUNCH, *map(Path, launch.hide)]
        keep = [work.root, Path(launch.cache_dir), Path(launch.python).parents[1]]
        if launch.server_file:
            server = Path(launch.server_file).parent  # its keys and database are next to it
            hide += [] if work.root.is_relative_to(server) else [server]
        return Walls(self._mode, hide, keep)

    def _put_back(self, chunks: Chunks) -> None:
        """Put checkpoints of earlier attempts where the script wrote them, and note what is there before it starts."""
        join, work = self._join, self._work
        if not join.put_back:
            return
        from shoal.agent.keeper import listed
        from shoal.agent.put_back import Donor, put_back

        given = next((i for i, m in enumerate(join.mounts) if m.path == CHECKPOINT), None)
        donor = (
            None if given is None else Donor(self._uses[given].path, chunks.manifest(join.mounts[given].manifest_id))
        )
        self._said = put_back(join.put_back, work, chunks, donor, self._capture.say)
        self._present = {one.name: one.files for one in listed(work.root / "output-checkpoint", self._workdir())}

    def _workdir(self) -> Workdir | None:
        """Return where to look for checkpoints beside the output directory; None if nobody wants that."""
        join = self._join
        if join.env.get(PUT_BACK) == "0" or preflight.is_one(join) or runtime.is_session(join.entry):
            return None
        from shoal.agent.workdir import Workdir

        source = {file["path"] for file in (join.source or {"files": []})["files"]}
        return Workdir(self._work.source, source, self._laid_out_ns)

    def _launch_workers(self) -> int:
        """Start them; returns how many processes there are to watch."""
        set_limits()
        try:
            return self._start()
        except LaunchFailed as error:
            forget(Path(self._launch.cache_dir))
            if self._mode is Mode.REWRITE or os.environ.get(SETTING) == "bubblewrap":
                raise
            self._capture.say(f"[shoal] no sandbox: {error}; paths are rewritten instead")
            self._workers.kill()
            self._workers, self._mode = Workers(self._capture), Mode.REWRITE
            return self._start()

    def _start(self) -> int:
        launch, work = self._launch, self._work
        mounts = [(m, use.path) for m, use in zip(self._join.mounts, self._uses, strict=True)]
        binds = lay_out(work.root, launch.job_id, mounts, mounted=self._mode is not Mode.REWRITE)
        todo = specs(launch, self._join, work, self._python, binds, self._mode, self._capture)
        if not self._start_warm(todo, binds):
            self._workers.start(todo, work.source, **self._surroundings(binds))
        return len(todo)

    def _surroundings(self, binds: list[Bind]) -> dict[str, Any]:
        walls = self._walls()
        return {
            "wrap": lambda argv: wrap(argv, walls.mode, binds, walls.hide, walls.keep),
            "reap": self._mode is not Mode.BWRAP_PID,
            "env": runtime.base_env(os.environ) | runtime.marks(self._launch),
        }

    def _start_warm(self, todo: list[Spec], binds: list[Bind]) -> bool:
        """Where we have a preloaded interpreter, and it may be used."""
        if self._seed is None:
            return False
        from shoal.agent.warm import WarmWorkers, why_cold

        seed, self._seed = self._seed, None
        why = why_cold(todo, self._python, self._work.source, seed.env)
        if why is None:
            workers = WarmWorkers(self._capture, seed, runtime.marks(self._launch))
            try:
                workers.start(todo, self._work.source, **self._surroundings(binds))
                self._workers, self._also = workers, ", warm"
                return True
            except LaunchFailed as error:
                workers.kill()
                why = str(error)
        seed.discard()
        logger.info("a cold start: %s", why)
        return False

    def _watch(self, watch: Watch, keeper: Keeper) -> None:
        """Until all workers have ended or were killed, and nothing of them is left."""
        while True:
            watch.exits += self._workers.events()
            if watch.lost_one:
                keeper.worker_failed()
            action = watch.next_action(
                time.monotonic(), stop_grace_s=self._orders.stop_grace_s, fenced=self._orders.fenced
            )
            if action is Action.TERMINATE:
                self._workers.terminate()
            if watch.done or self._workers.gone:
                break
            wait_readable([self._workers.fileno(), self._orders.wake_r], watch.wait_s(time.monotonic()))
            self._orders.clear_wake()
        watch.exits += self._workers.kill()

    def _judge(self, watch: Watch) -> dict[str, Any]:
        self._capture.close()
        if watch.told or (self._orders.stop and watch.failure is None):  # a signal to all of us reaches them first
            codes = [e.code for e in watch.exits if e.code != 0]
            code = codes[0] if codes else 0 if watch.complete else -int(signal.SIGKILL)
            return ended(code, "fenced" if self._orders.fenced else "stopped", told=True)
        failure = watch.failure
        if failure is None:
            if watch.complete and all(e.code == 0 for e in watch.exits):
                return ended(0, None)
            words = last_error(self._capture.tail(None, "sys"))
            return ended(
                -int(signal.SIGKILL), f"the launcher of the workers died: {words or 'killed (out of memory?)'}"
            )
        rank, code = self._blame(failure.local, failure.code)
        # A torchrun of ours imports torch before it starts a worker, and is refused itself.
        why = refusal(self._capture.tail(None, "sys"))
        why = why or explain(code, self._capture.tail(rank, "err"), self._capture.tail(rank, "out"))
        return ended(code, why, rank=rank)

    def _blame(self, local: int, code: int) -> tuple[int | None, int]:
        """(rank, exit code) of the worker at fault; torchrun names it in its own output."""
        if self._join.launcher == "torchrun":
            found = from_torchrun(self._capture.tail(None, "sys"))
            if found:
                return found
        return self._ranks.start + local, code

    def _finish(self, result: dict[str, Any]) -> int:
        """Tell how it ended, ship what is left, say goodbye; for as long as it takes."""
        for task in self._regular:
            task.stop()
        if result["reason"]:
            result["reason"] = self._capture.redact(result["reason"])
        self._reports.last_look(None if result["told"] else result["exit_code"], result["reason"])
        self._capture.close()
        result = preflight.told(self._work, self._join, result, self._capture.redact)
        self._work.keep_result(result)
        self._beats.update(state="exited", **result)
        deadline = time.monotonic() + DELIVER_FOR_S
        delivered = deliver(self._beats, self._shipper, self._reports, deadline)
        if delivered:
            self._work.keep_result({**result, "delivered": True})
            clear(self._work.tmp)
            clear(self._work.root / "input")
        return 0 if delivered else 5

    def _start_sampling(self) -> None:
        from shoal.agent import inventory
        from shoal.agent.samples import INTERVAL_S, Sampler

        if self._launch.node == 0:
            self._spools["system"].append([inventory.record(self._python, self._launch.python)])
        gpus = self._launch.slots if self._launch.slot_kind == "cuda" else []
        sampler = Sampler(self._workers.root_pid, self._work.root, gpus)
        self._regular.append(Every(INTERVAL_S, lambda: self._spools["system"].append([sampler.sample()])))
        self._regular[-1].start()

    def _start_keeper(self) -> Keeper:
        from shoal.agent.keeper import Keeper

        keeper = Keeper(
            preflight.out(self._work, self._join),
            self._link.another(),
            self._capture.say,
            self._note_kept,
            node=self._launch.node,
            workdir=self._workdir(),
            present=self._present,
        )
        keeper.start()
        return keeper

    def _note_kept(self, name: str) -> None:
        """For a worker that waits until a checkpoint is safe."""
        try:
            with (self._work.spool("sdk") / "kept").open("a") as file:
                file.write(f"{name}\n")
        except OSError as error:
            logger.warning("that checkpoint %s is safe cannot be noted: %s", name, error)

    def _start_reports(self, keeper: Keeper) -> None:
        self._reports.on_checkpoint = keeper.nudge
        self._regular.append(Every(LOOK_EVERY_S, self._reports.look))
        self._regular[-1].start()

    def _sync(self) -> None:
        for spool in self._spools.values():
            spool.sync()

    def _report_progress(self) -> dict[str, Any] | None:
        """The job's own word counts for more than its output, where it says how far there is to go."""
        told, read = self._reports.progress(), self._progress.report()
        return told if told and (told["fraction"] is not None or not read) else read


def deliver(beats: Beats, shipper: Shipper, reports: RunReports, deadline: float) -> bool:
    """The end of a node: all records first, then the last beat."""
    if not reports.drained(deadline - time.monotonic()):
        return False
    if not shipper.drained(deadline - time.monotonic()):
        return False
    version = beats.update(final=True)
    if not beats.delivered(version, deadline - time.monotonic()):
        return False
    beats.leave()
    return True


def ended(code: int | None, reason: str | None, *, rank: int | None = None, told: bool = False) -> dict[str, Any]:
    return {"exit_code": code, "failed_rank": rank, "reason": reason, "told": told}


def set_up_logging() -> None:
    # Engines redirect our stderr to agent.log.
    level = os.environ.get("SHOAL_LOG_LEVEL") or "INFO"
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=level)
