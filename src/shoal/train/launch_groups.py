"""Running trainings. Each is a group of launchers, one per machine, that start and end together."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from shoal.agent.node.end_reasons import explain
from shoal.sdk.trial import SKIPPED
from shoal.train.launch import STOPPED, LauncherWork
from shoal.train.preflight import Ready

_TAIL = 16 << 10
_LAST_S = 10.0
"""Seconds to wait for launchers that have ended their work, before they are killed."""


@dataclass(slots=True, kw_only=True)
class Task:
    """One training to run."""

    name: str
    entry: Sequence[str]
    """Script and arguments."""
    logs: Path
    """Folder of the files log.node_N with the output of launchers and workers."""
    workers: int = 1
    """Workers per machine."""
    env: Mapping[str, str] = field(default_factory=dict)
    outcome: Callable[[], str | None] = lambda: None
    """Function that returns the status the training has recorded: "finished", "stopped", "skipped", "failed" or None."""
    why: Callable[[], str | None] = lambda: None
    """Function that returns the failure recorded by the worker that failed first; in the log, its peers' errors may follow."""
    score: Callable[[], float | None] = lambda: None
    """Function that returns the best evaluation so far; smaller is better."""
    env_at: Callable[[Ready, Sequence[int]], Mapping[str, str]] = lambda place, slots: {}
    """Function that returns additional environment variables for a machine and its slots."""
    begin: Callable[[Sequence[Ready]], None] = lambda places: None
    """Function that is called before the start."""


@dataclass(slots=True, kw_only=True)
class Result:
    """Result of a task."""

    task: Task
    status: str
    """"finished", "stopped", "skipped" or "failed"."""
    seconds: float
    reason: str | None = None
    """Reason of a failure."""
    score: float | None = None


class LaunchGroup:
    """One task on its machines. Rank 0 runs on the first of `places`."""

    def __init__(self, task: Task, places: Sequence[Ready], env: Callable[[Ready], Mapping[str, str]]):
        self.task, self.places = task, list(places)
        self._started = time.monotonic()
        self._was_stopped = False
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        task.logs.mkdir(parents=True, exist_ok=True)
        task.begin(places)
        head = self.places[0]
        for number, ready in enumerate(self.places):
            work = LauncherWork(
                entry=list(task.entry),
                cwd=str(Path.cwd()),
                name=task.name,
                workers=task.workers,
                node=number,
                nodes=len(self.places),
                master_addr=head.address if len(self.places) > 1 else "127.0.0.1",
                master_port=head.port,
                env={**task.env, **env(ready)},
            )
            self._nodes[number] = self._launch(ready, work)
        self.pidfds = [os.pidfd_open(node.pid) for node in self._nodes.values()]

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        """True if all launchers have ended."""
        return all(node.poll() is not None for node in self._nodes.values())

    def end_if_one_failed(self) -> None:
        """End all launchers if one has failed, because the others would wait for ever."""
        codes = [node.poll() for node in self._nodes.values()]
        if any(codes) and None in codes:
            self._send(b"end\n")

    def stop(self) -> None:
        """Let the training save and stop."""
        self._was_stopped = True
        self._send(b"stop\n")

    def close(self) -> Result:
        """Wait until all launchers have ended and return the result."""
        for node in self._nodes.values():
            if node.stdin is not None:
                with suppress(OSError):
                    node.stdin.close()
            try:
                node.wait(_LAST_S if self.is_over else None)
            except subprocess.TimeoutExpired:
                node.kill()
        for fd in self.pidfds:
            os.close(fd)
        return self._result()

    def _result(self) -> Result:
        seconds = self.seconds
        codes = {number: node.returncode for number, node in self._nodes.items()}
        noted, score = self.task.outcome(), self.task.score()
        if SKIPPED in codes.values():
            return Result(task=self.task, status="skipped", seconds=seconds)
        worst = next((n for n, code in codes.items() if code not in (0, STOPPED)), None)
        if worst is None and noted != "failed":
            ended = "stopped" if self._was_stopped or STOPPED in codes.values() else "finished"
            return Result(task=self.task, status=noted or ended, seconds=seconds, score=score)
        worst = worst or 0
        reason = self.task.why() or explain(codes[worst], _tail(self._log(worst)))
        return Result(task=self.task, status="failed", seconds=seconds, reason=reason, score=score)

    def _launch(self, ready: Ready, work: LauncherWork) -> subprocess.Popen[bytes]:
        command = ready.place.host.command([sys.executable, "-m", "shoal.train.launch"], work.cwd)
        with self._log(work.node).open("ab") as log:
            node = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, bufsize=0
            )
        assert node.stdin is not None  # noqa: S101
        with suppress(OSError):  # it has already died; its exit code shows that
            node.stdin.write(work.to_line())
        return node

    def _log(self, node: int) -> Path:
        return self.task.logs / f"log.node_{node}"

    def _send(self, word: bytes) -> None:
        for node in self._nodes.values():
            if node.poll() is None and node.stdin is not None:
                with suppress(OSError):
                    node.stdin.write(word)


def wait_for_end(groups: Sequence[LaunchGroup], timeout_s: float) -> None:
    """Wait until a launcher ends, at most `timeout_s`."""
    with selectors.DefaultSelector() as selector:
        for group in groups:
            for fd in group.pidfds:
                if not _has_ended(fd):
                    selector.register(fd, selectors.EVENT_READ)
        if selector.get_map():
            selector.select(timeout_s)


def _has_ended(pidfd: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pidfd, selectors.EVENT_READ)
        return bool(selector.select(0))


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
