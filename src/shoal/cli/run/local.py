"""Workers on this machine without a server: the runtime contract of a job, in the current folder and environment."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shoal.agent.data.inputs import OUTPUT, data_path, lay_out
from shoal.agent.node.end_reasons import explain, last_error
from shoal.agent.sandbox.mounts import Bind, Mode, Rewriter, choose, forget, wrap
from shoal.agent.sdk_records.run_end import correct_end
from shoal.agent.wire import JoinReply, Launch, Mount
from shoal.agent.workers import runtime
from shoal.agent.workers.data_option import wants_data
from shoal.agent.workers.stop_signals import StopSignals
from shoal.agent.workers.workers import Action, LaunchFailed, Spec, Watch, Workers, wait_readable
from shoal.cli.run.run_dir import RunDir
from shoal.cli.run.tee import Tee
from shoal.cli.shared.output import out
from shoal.core.ports import free_port
from shoal.core.settings import Layout

GRACE_S = 30.0
"""Seconds between the first Ctrl-C (or SIGTERM) and SIGKILL: time for the script to save."""
_NOT_OURS = frozenset(
    "SHOAL_RESUME_FROM FLEXAI_INPUT_CHECKPOINT_DIR SHOAL_EMULATE_CUDA_TOLD SHOAL_SPOOL RANK LOCAL_RANK WORLD_SIZE "
    "LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR MASTER_PORT".split()
)
"""Variables that are not inherited: they describe the rank and checkpoint of a worker that may have started this process."""
_NOT_LOCAL = frozenset({"SHOAL_URL", "SHOAL_NO_AUTOSTART"})


class Ended(NamedTuple):
    code: int
    """0, the exit code of the rank that failed first, or 128 + the signal that killed it (or that stopped this command)."""
    reason: str | None = None
    rank: int | None = None
    stopped: bool = False


@dataclass(slots=True, kw_only=True)
class LocalRun:
    """One attempt of a run. `run` returns when all of its processes have ended."""

    entry: Sequence[str]
    run_dir: RunDir
    nproc: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables from the user, which override the current environment and the contract's variables."""
    data: Mapping[str, Path] = field(default_factory=dict)
    """Mapping of name → folder that is mounted at /input/<name>."""
    resume_from: Path | None = None
    python: str = sys.executable
    stdout: int = 1
    stderr: int = 2
    """File descriptors for the output of the workers."""
    _mode: Mode = field(default=Mode.REWRITE, init=False)

    def run(self) -> Ended:
        attempt = self.run_dir.begin(self.resume_from)
        tee = Tee(self.run_dir.logs, num_workers=self.nproc, stdout=self.stdout, stderr=self.stderr)
        tee.start()
        try:
            with _Signals() as signals:
                watch = self._watch(tee, attempt, signals)
            tee.close()
            ended = _judge(watch, tee, signals)
        finally:
            tee.close()
            shutil.rmtree(self.run_dir.tmp, ignore_errors=True)
        if not ended.stopped:
            correct_end(self.run_dir.spool, ended.code, ended.reason)
        self.run_dir.end(ended.code, ended.reason)
        return ended

    def _watch(self, tee: Tee, attempt: int, signals: _Signals) -> Watch:
        workers, count = self._start(tee, attempt)
        watch = Watch(count)
        try:
            while True:
                watch.exits += workers.events()
                grace_s = GRACE_S if signals.got else None
                action = watch.next_action(time.monotonic(), stop_grace_s=grace_s, fenced=len(signals.got) > 1)
                if action is Action.TERMINATE:
                    workers.terminate()
                if watch.done or workers.gone:
                    return watch
                wait_readable([workers.fileno(), signals.pipe.wake_r], watch.wait_s(time.monotonic()))
                signals.pipe.clear()
        finally:
            watch.exits += workers.kill()

    def _start(self, tee: Tee, attempt: int) -> tuple[Workers, int]:
        cache = Layout().root / "cache"
        self._mode = choose(cache)
        while True:
            workers = Workers(tee)
            binds = self._binds()
            specs = self._specs(binds, attempt, cache)
            try:
                workers.start(
                    specs,
                    Path.cwd(),
                    partial(wrap, mode=self._mode, binds=binds),
                    reap=self._mode is not Mode.BWRAP_PID,
                    env=dict(os.environ),
                )
                return workers, len(specs)
            except LaunchFailed:
                workers.kill()
                if self._mode is Mode.REWRITE:
                    raise
                forget(cache)
                self._mode = Mode.REWRITE

    def _binds(self) -> list[Bind]:
        """Return the mounts of a job, without those whose top-level folder already exists on this machine."""
        tmp = self.run_dir.tmp
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        mounts = [(mount, self.data[mount.name]) for mount in self._mounts]
        if self.resume_from is not None:
            mounts.append((Mount({"path": "/input-checkpoint", "manifest_id": "", "name": ""}), self.resume_from))
        binds = lay_out(tmp, self.run_dir.root.name, mounts, mounted=self._mode is not Mode.REWRITE)
        unused = str(tmp / OUTPUT.strip("/"))
        binds = [b._replace(host=str(self.run_dir.checkpoints)) if b.host == unused else b for b in binds]
        return [b for b in binds if not Path("/", b.inside.split("/")[1]).exists()]

    @property
    def _mounts(self) -> list[Mount]:
        return [Mount({"path": f"/input/{name}", "manifest_id": "", "name": name}) for name in self.data]

    def _specs(self, binds: list[Bind], attempt: int, cache: Path) -> list[Spec]:
        launch, join = self._launch(attempt, cache), self._join()
        # Environment variables contain host paths: they also exist inside the sandbox, and make sense in messages.
        host_path = Rewriter(binds)
        rewrite = host_path if self._mode is Mode.REWRITE else Rewriter()
        command = runtime.command(list(self.entry), self.python, Path.cwd())
        data = data_path(self._mounts)
        argv = [rewrite(a) for a in command.argv]
        script = runtime.script_text(Path(), command.script)
        if data and wants_data(list(self.entry), Path(), command.script):
            argv += ["--data", rewrite(data)]
        paths = runtime.Paths(
            host_path(data) if data else None,
            str(self.run_dir.checkpoints),
            str(self.resume_from) if self.resume_from else None,
            str(self.run_dir.spool),
        )
        host = _host_env()
        node = runtime.node_env(launch, join, paths) | runtime.network_env(join, host)
        node = {k: v for k, v in node.items() if k not in _NOT_LOCAL and not (k == "OMP_NUM_THREADS" and k in host)}

        def env(own: dict[str, str]) -> dict[str, str]:
            return runtime.merge(host, node, dict(self.env), own, rewrite)

        if not command.per_rank:
            return [Spec(argv, env(runtime.launcher_env(launch, join)), 0, group=True)]
        plain = runtime.is_plain(join, script)
        error_file = str(self.run_dir.tmp / "error.{}.json")
        return [
            Spec(argv, env(runtime.rank_env(launch, join, rank, error_file.format(rank), plain=plain)), rank)
            for rank in range(self.nproc)
        ]

    def _launch(self, attempt: int, cache: Path) -> Launch:
        root = self.run_dir.root
        return Launch(
            {
                "job_id": root.name,
                "job_name": self.run_dir.facts["name"],
                "attempt_id": f"{root.name}.{attempt}",
                "attempt": attempt,
                "node": 0,
                "url": "",
                "cache_dir": str(cache),
                "slots": list(range(self.nproc)),
                "cpu_threads": max(1, (os.cpu_count() or 1) // self.nproc),
            }
        )

    def _join(self) -> JoinReply:
        return JoinReply({"ready": True, "accels": self.nproc, "master_addr": "127.0.0.1", "master_port": free_port()})


class _Signals:
    """Counter of termination signals (Ctrl-C, SIGTERM …) while workers run; each of them wakes the main loop."""

    def __init__(self) -> None:
        self.got: list[int] = []
        self.pipe = StopSignals()

    def __enter__(self) -> _Signals:
        self.pipe.install(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        self.pipe.close()

    def _note(self, signum: int) -> None:
        self.got.append(signum)
        if len(self.got) == 1:
            out.info(f"\nStopping. The script has up to {GRACE_S:.0f} s to save; press Ctrl-C again to kill it.")


def _judge(watch: Watch, tee: Tee, signals: _Signals) -> Ended:
    failure = watch.failure
    if watch.told or (signals.got and failure is None):
        signum = signals.got[0]
        return Ended(128 + signum, f"stopped by {signal.Signals(signum).name}", stopped=True)
    if failure is not None:
        reason = explain(failure.code, tee.tail(failure.local, "err"), tee.tail(failure.local, "out"))
        return Ended(failure.code if failure.code > 0 else 128 - failure.code, reason, failure.local)
    if watch.complete:
        return Ended(0)
    words = last_error(tee.tail(None, "sys")) or "killed (out of memory?)"
    return Ended(128 + signal.SIGKILL, f"the launcher of the workers died: {words}")


def _host_env() -> dict[str, str]:
    """Return the current environment, with the folder of this interpreter on the PATH."""
    env = {k: v for k, v in os.environ.items() if k not in _NOT_OURS and not k.startswith("TORCHELASTIC_")}
    folder = str(Path(sys.executable).parent)
    if folder not in env.get("PATH", "").split(":"):
        env["PATH"] = f"{folder}:{env.get('PATH', '/usr/bin:/bin')}"
    return env
