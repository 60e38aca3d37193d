"""One node of one attempt, from the moment all nodes have joined until the server knows how it ended."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.agent.data.inputs import CHECKPOINT, OUTPUT, Chunks, clear, fetch_mount, lay_out, source_key, write_source
from shoal.agent.link import Link
from shoal.agent.mlflow.api import TrackingApi
from shoal.agent.mlflow.listener import TrackingListener
from shoal.agent.node import preflight
from shoal.agent.node.commands import Commands
from shoal.agent.node.delivery import DELIVER_FOR_S, deliver, ended, set_up_logging
from shoal.agent.node.end_reasons import explain, from_torchrun, last_error, not_started, refusal
from shoal.agent.node.heartbeat import Beats, Every, NodeControl
from shoal.agent.node.job_files import write_for_job
from shoal.agent.node.limits import set_limits
from shoal.agent.node.sampling import leftovers, system_metrics
from shoal.agent.node.start_barrier import wait_for_gang
from shoal.agent.node.workdir import LAUNCH, NotReady, WorkDir
from shoal.agent.outbox.outbox import Outbox
from shoal.agent.outbox.shipping import Shipper
from shoal.agent.sandbox.job import TRACKING_PORT, Wall
from shoal.agent.sandbox.limits import POLL_S as DISK_POLL_S
from shoal.agent.sandbox.mounts import SETTING, Bind, Mode, Rewriter, Walls, choose, forget
from shoal.agent.sdk_records.reports import RunReports
from shoal.agent.sdk_records.spool import POLL_EVERY_S
from shoal.agent.wire import MOST_UNKILLABLE, PUT_BACK, JoinReply, Launch
from shoal.agent.workers import runtime
from shoal.agent.workers.lines import Redactor
from shoal.agent.workers.logs import DEFAULT_RATE_KB_S, Capture
from shoal.agent.workers.output_reader import OutputReader, wants_metrics
from shoal.agent.workers.progress import better_known
from shoal.agent.workers.requirement_files import NAMES, with_advice
from shoal.agent.workers.specs import specs
from shoal.agent.workers.workers import Action, LaunchFailed, Spec, Watch, Workers, wait_readable

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.agent.data.checkpoint_reads import CheckpointReads
    from shoal.agent.data.checkpoint_uploader import CheckpointUploader
    from shoal.agent.data.folder_mounts import FolderMounts
    from shoal.agent.data.workdir_checkpoints import Files, Workdir
    from shoal.agent.prefork.worker import WaitingWorker
    from shoal.store.cache import CacheUse

logger = logging.getLogger(__name__)

SYNC_EVERY_S = 1.0
_KILLED = (-int(signal.SIGKILL), 128 + int(signal.SIGKILL))


class Node:
    """Prepares and runs the workers of one node and delivers everything they produce.

    The main thread runs `run`. Threads of their own send heartbeats (`Beats`) and records (`Shipper`), capture output
    (`Capture`), upload checkpoints and read the SDK's records; each has its own link to the server.
    """

    def __init__(
        self, launch: Launch, join: JoinReply, work: WorkDir, link: Link, waiting: WaitingWorker | None = None
    ):
        self._launch, self._join, self._work, self._link = launch, join, work, link
        self._waiting = waiting
        self._control = NodeControl()
        self._outboxes = {stream: Outbox(work.spool(stream)) for stream in ("log", "system", "metric")}
        rate = int(os.environ.get("SHOAL_LOG_RATE_KB_S") or DEFAULT_RATE_KB_S)
        self._capture = Capture(self._outboxes["log"], Redactor(join.secrets.values()), rate)
        self._output = OutputReader(
            Redactor(join.secrets.values()), reads_metrics=launch.node == 0 and wants_metrics(join)
        )
        self._reports = RunReports(
            work, self._outboxes["metric"], link.another(), self._capture.write_message, Redactor(join.secrets.values())
        )
        self._beats = Beats(link, self._control, self._report_progress)
        self._shipper = Shipper(link.another(), self._outboxes, self._capture.write_message)
        self._regular = [Every(SYNC_EVERY_S, self._sync)]
        self._workers = Workers(self._capture)
        self._ranks = range(launch.node * join.accels, (launch.node + 1) * join.accels)
        self._mode, self._also = Mode.REWRITE, ""
        self._wall: Wall | None = None
        self._tracking: TrackingListener | None = None
        self._folders: FolderMounts | None = None
        self._python = launch.python
        self._uses: list[CacheUse] = []
        """Cache uses of the mounts' data; while they are held, the cache does not evict it."""
        self._laid_out_ns = 0
        """Time when the source was complete; newer files in the working directory were written by the job."""
        self._present: dict[str, Files] = {}
        """Checkpoints that existed before the workers started."""
        self._restored: list[str] = []
        """Checkpoints that were restored from earlier attempts."""
        self._places: dict[Path, set[str]] = {}
        """Their files: folder → names."""
        self._reads: CheckpointReads | None = None

    def run(self) -> int:
        """Prepare the node, run its workers and report how they ended; return the agent's exit code."""
        set_up_logging()
        self._control.signals.install(lambda _: self._control.request(stop=True))
        self._control.on_why = self._reports.write_stop_reason
        self._control.on_command = Commands(
            self._launch, self._work, self._link, self._ranks, self._capture.write_message
        ).start_once
        self._capture.watched_rank = self._ranks.start if self._launch.node == 0 else -1
        self._capture.on_line = self._output.feed
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
            wait_for_gang(self._link.another(), self._join, self._control)
            watch = None if self._control.any else Watch(self._launch_workers())
        except NotReady as error:
            rank = None if error.local is None else self._ranks.start + error.local
            return ended(1, not_started(str(error), self._work.root), rank=rank)
        except Exception as error:
            self._workers.kill()
            if not self._control.any:
                logger.exception("cannot start")
                return ended(1, not_started(f"cannot start: {error}", self._work.root))
            watch = None
        if watch is None:
            return ended(None, "stopped before it started", told=True)
        known = {"sandbox": self._wall.summary} if self._wall and self._join.sandbox else {}
        self._beats.update(state="running", paths=self._mode.paths + self._also, put_back=self._restored, **known)
        self._start_sampling()
        uploader = self._start_uploader()
        self._start_reports(uploader)
        self._watch(watch, uploader)
        if self._reads is not None:
            self._reads.finish(well=watch.complete and all(e.code == 0 for e in watch.exits))
        try:
            uploader.finish(all_well=watch.complete and not watch.lost_one)
        except OSError as error:  # the output folder cannot be read; the workers' result is valid nevertheless
            self._capture.write_message(f"[shoal] the last checkpoints could not be uploaded: {error}")
        return self._judge(watch)

    def _prepare(self) -> None:
        """Bring everything to disk that the workers need: source, data, environment and earlier checkpoints."""
        launch, join, work = self._launch, self._join, self._work
        cache = Path(launch.cache_dir)
        chunks = Chunks(launch, self._link, lambda: self._control.any, join.neighbours)
        for folder in (work.tmp, work.spool("sdk")):
            folder.mkdir(parents=True, exist_ok=True)
        devices = leftovers(launch, join, self._capture.write_message)
        self._mode = choose(cache)
        self._wall = Wall(launch, join, work, self._walls())
        self._wall.open()
        self._mode = self._wall.mode
        manifest = join.source or {"files": []}
        write_source(manifest, chunks, work.source)
        self._laid_out_ns = time.time_ns()
        self._uses = [fetch_mount(m, chunks, cache, self._capture.write_message) for m in join.mounts]
        if join.folder_mounts:
            from shoal.agent.data.folder_mounts import open_folders

            self._folders = open_folders(join, work, self._capture.write_message, lambda: self._control.any)
        if any((work.source / name).is_file() for name in NAMES):
            self._python = self._build(source_key(manifest))
        self._put_back(chunks)  # after the build, so that files a job wrote cannot influence what is installed
        if used := devices.wait(lambda: self._control.any):
            raise NotReady(used.text, used.local)

    def _build(self, source: str) -> str:
        """Return the interpreter with the packages that the source names. `source` is a key of the source's content."""
        from shoal.agent.workers.environment import Builder, remove_unused

        launch, join = self._launch, self._join
        pip_env = runtime.base_env(os.environ) | {
            k: v for k, v in (join.env | join.secrets).items() if k.startswith("PIP_")
        }
        builder = Builder(
            Path(launch.cache_dir),
            launch.python,
            self._capture.write_message,
            lambda: self._control.any,
            walls=self._opened_wall().walls,
            wall=self._wall,
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
        """Restore checkpoints of earlier attempts to where the script wrote them, and list what exists before it starts."""
        join, work = self._join, self._work
        if not join.put_back:
            return
        from shoal.agent.data.checkpoint_uploader import listed
        from shoal.agent.data.restore import Donor, places, put_back

        given = next((i for i, m in enumerate(join.mounts) if m.path == CHECKPOINT), None)
        donor = (
            None if given is None else Donor(self._uses[given].path, chunks.manifest(join.mounts[given].manifest_id))
        )
        self._places = places(join.put_back, work, chunks)
        self._restored = put_back(join.put_back, work, chunks, donor, self._capture.write_message)
        self._present = {one.name: one.files for one in listed(work.root / "output-checkpoint", self._workdir())}

    def _workdir(self) -> Workdir | None:
        """Return the working directory to search for checkpoints; None if the job disabled that or is not a training script."""
        join = self._join
        if join.env.get(PUT_BACK) == "0" or preflight.is_preflight(join) or runtime.is_session(join.entry):
            return None
        from shoal.agent.data.workdir_checkpoints import Workdir

        source = {file["path"] for file in (join.source or {"files": []})["files"]}
        return Workdir(self._work.source, source, self._laid_out_ns)

    def _launch_workers(self) -> int:
        """Start the workers, without a sandbox if it fails to come up; return the number of processes to watch."""
        set_limits()
        try:
            return self._start()
        except LaunchFailed as error:
            forget(Path(self._launch.cache_dir))
            if self._mode is Mode.REWRITE or os.environ.get(SETTING) == "bubblewrap" or not self._may_be_weaker():
                raise
            self._capture.write_message(f"[shoal] no sandbox: {error}; paths are rewritten instead")
            self._workers.kill()
            self._workers, self._mode = Workers(self._capture), Mode.REWRITE
            self._opened_wall().close()
            self._wall = Wall(self._launch, self._join, self._work, self._walls())
            self._wall.open()
            return self._start()

    def _may_be_weaker(self) -> bool:
        """Return whether the server accepts a job without a sandbox: only a private server does."""
        required = self._join.sandbox or {}
        return required.get("files") != "own" and required.get("least", "S0") in ("S0", "off")

    def _start(self) -> int:
        launch, work = self._launch, self._work
        mounts = [(m, use.path) for m, use in zip(self._join.mounts, self._uses, strict=True)]
        binds = lay_out(work.root, launch.job_id, mounts, mounted=self._mode is not Mode.REWRITE)
        binds += self._folders.binds if self._folders else []
        tracking = self._open_tracking(binds)
        todo = specs(launch, self._join, work, self._python, binds, self._mode, self._capture, tracking)
        wall, given = self._opened_wall(), self._join.env | self._join.secrets
        self._watch_reads()
        todo = [s._replace(env=s.env | {k: v for k, v in wall.env(s.env).items() if k not in given}) for s in todo]
        wall.prepare()
        if not self._start_warm(todo, binds):
            self._workers.start(todo, work.source, **self._surroundings(binds))
        return len(todo)

    def _open_tracking(self, binds: list[Bind]) -> Callable[[int], str]:
        """Serve MLflow's API to the workers; return the function that returns a worker's URI by rank."""
        artifacts = Rewriter(binds if self._mode is Mode.REWRITE else ())(f"{OUTPUT}/mlruns")
        api = TrackingApi(self._launch.job_name, artifacts, self._reports.add)
        if self._tracking is not None:
            self._tracking.close()
        inside = self._opened_wall().listen_for_tracking()
        self._tracking = served = TrackingListener(inside, api) if inside else TrackingListener.on_loopback(api)
        return lambda rank: served.url(rank, TRACKING_PORT if inside else None)

    def _watch_reads(self) -> None:
        given = next((i for i, m in enumerate(self._join.mounts) if m.path == CHECKPOINT), None)
        is_training = not preflight.is_preflight(self._join) and not runtime.is_session(self._join.entry)
        # On one node, because others may read it there.
        if given is not None and self._launch.node == 0 and is_training and self._reads is None:
            from shoal.agent.data.checkpoint_reads import watch

            places = (self._uses[given].path, self._places)
            self._reads = watch(self._join.mounts[given].name, *places, self._report_progress, self._note_unread)
            self._regular.append(Every(SYNC_EVERY_S, self._reads.poll))
            self._regular[-1].start()

    def _note_unread(self, text: str) -> None:
        self._capture.write_message(f"[shoal] warning: {text}")
        self._beats.update(warnings=[text])

    def _opened_wall(self) -> Wall:
        assert self._wall is not None  # noqa: S101
        return self._wall

    def _surroundings(self, binds: list[Bind]) -> dict[str, Any]:
        wall = self._opened_wall()
        return {
            "wrap": lambda argv: wall.wrap(argv, binds, self._python),
            "reap": self._mode is not Mode.BWRAP_PID,
            "env": runtime.base_env(os.environ) | runtime.marks(self._launch),
        }

    def _start_warm(self, todo: list[Spec], binds: list[Bind]) -> bool:
        """Start the worker in the preloaded interpreter; return False if there is none or it cannot be used."""
        if self._waiting is None:
            return False
        from shoal.agent.prefork.warm import WarmWorkers, why_cold

        waiting, self._waiting = self._waiting, None
        why = why_cold(todo, self._python, self._work.source, waiting.env)
        wall = self._opened_wall()
        if wall.is_own or wall.group is not None:
            why = "a preloaded interpreter has not the job's user and limits"
        if why is None:
            workers = WarmWorkers(self._capture, waiting, runtime.marks(self._launch))
            try:
                workers.start(todo, self._work.source, **self._surroundings(binds))
                self._workers, self._also = workers, ", warm"
                return True
            except LaunchFailed as error:
                workers.kill()
                why = str(error)
        waiting.discard()
        logger.info("cold start: %s", why)
        return False

    def _watch(self, watch: Watch, uploader: CheckpointUploader) -> None:
        """Wait until all workers have ended or were killed and none of their processes is left."""
        while True:
            watch.exits += self._workers.events()
            if watch.lost_one:
                uploader.worker_failed()
            action = watch.next_action(
                time.monotonic(), stop_grace_s=self._control.stop_grace_s, fenced=self._control.fenced
            )
            if action is Action.TERMINATE:
                self._workers.terminate()
            if watch.done or self._workers.gone:
                break
            wait_readable([self._workers.fileno(), self._control.signals.wake_r], watch.wait_s(time.monotonic()))
            self._control.signals.clear()
        watch.exits += self._workers.kill()
        if self._wall is not None:
            self._wall.kill()

    def _judge(self, watch: Watch) -> dict[str, Any]:
        self._capture.close()
        if watch.told or (
            self._control.stop and watch.failure is None
        ):  # a signal to the whole process group may reach the workers first
            codes = [e.code for e in watch.exits if e.code != 0]
            code = codes[0] if codes else 0 if watch.complete else -int(signal.SIGKILL)
            return ended(code, "fenced" if self._control.fenced else "stopped", told=True)
        failure = watch.failure
        if failure is None and watch.complete and all(e.code == 0 for e in watch.exits):
            return ended(0, None)
        limit = self._wall.limit_reached() if self._wall else None
        if limit and (failure is None or failure.code in _KILLED):
            return ended(-int(signal.SIGKILL), limit, rank=self._ranks.start + failure.local if failure else None)
        if failure is None:
            words = last_error(self._capture.tail(None, "sys"))
            return ended(
                -int(signal.SIGKILL), f"the launcher of the workers died: {words or 'killed (out of memory?)'}"
            )
        rank, code = self._blame(failure.local, failure.code)
        # The device check may also refuse torchrun itself, which imports torch before it starts a worker.
        why = refusal(self._capture.tail(None, "sys"))
        why = why or explain(code, self._capture.tail(rank, "err"), self._capture.tail(rank, "out"))
        why = with_advice(why, self._work.source)
        return ended(code, why, rank=rank)

    def _blame(self, local: int, code: int) -> tuple[int | None, int]:
        """Return rank and exit code of the worker at fault; torchrun names it in its output."""
        if self._join.launcher == "torchrun":
            found = from_torchrun(self._capture.tail(None, "sys"))
            if found:
                return found
        return self._ranks.start + local, code

    def _finish(self, result: dict[str, Any]) -> int:
        """Report how the node ended and deliver all remaining records; keep trying for DELIVER_FOR_S."""
        for task in self._regular:
            task.stop()
        if self._tracking is not None:
            self._tracking.close()
        if self._wall is not None:
            self._wall.close()
        if self._folders is not None:
            self._folders.close()
        if result["reason"]:
            result["reason"] = self._capture.redact(result["reason"])
        result["unkillable"] = self._workers.unkillable[:MOST_UNKILLABLE]
        self._reports.read_last(None if result["told"] else result["exit_code"], result["reason"])
        self._capture.close()
        self._output.ship_metrics(self._outboxes["metric"].append, has_sdk=self._reports.has_metrics, last=True)
        result = preflight.with_report(self._work, self._join, result, self._capture.redact)
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
        from shoal.agent.devices.system_metrics import INTERVAL_S
        from shoal.agent.node import inventory

        if self._launch.node == 0:
            self._outboxes["system"].append([inventory.record(self._python, self._launch.python)])
        pid, say = self._workers.root_pid, self._capture.write_message
        metrics = system_metrics(self._launch, self._work, pid, self._beats, say)
        self._regular.append(Every(INTERVAL_S, lambda: self._outboxes["system"].append([metrics.sample()])))
        self._regular[-1].start()
        if self._wall and (watch := self._wall.disk_watch()):
            self._regular.append(Every(DISK_POLL_S, watch.poll))
            self._regular[-1].start()

    def _start_uploader(self) -> CheckpointUploader:
        from shoal.agent.data.checkpoint_uploader import CheckpointUploader
        from shoal.store.hasher import read_only_within

        read_only_within(self._work.root)
        uploader = CheckpointUploader(
            preflight.out(self._work, self._join),
            self._link.another(),
            self._capture.write_message,
            self._note_kept,
            node=self._launch.node,
            workdir=self._workdir(),
            present=self._present,
        )
        uploader.start()
        return uploader

    def _note_kept(self, name: str) -> None:
        """Record in the SDK's spool that a checkpoint is safe, for workers that wait for it."""
        try:
            write_for_job(self._work.spool("sdk") / "kept", f"{name}\n", append=True)
        except OSError as error:
            logger.warning("cannot record that checkpoint %s is safe: %s", name, error)

    def _start_reports(self, uploader: CheckpointUploader) -> None:
        self._reports.on_checkpoint = uploader.nudge
        self._regular.append(Every(POLL_EVERY_S, self._poll_reports))
        self._regular[-1].start()

    def _poll_reports(self) -> None:
        self._reports.poll()
        self._output.ship_metrics(self._outboxes["metric"].append, has_sdk=self._reports.has_metrics)

    def _sync(self) -> None:
        for outbox in self._outboxes.values():
            outbox.sync()

    def _report_progress(self) -> dict[str, Any] | None:
        return better_known(self._reports.progress(), self._output.progress())
