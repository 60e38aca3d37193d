"""TopSpin's starters: many trainings over a pool of servers (start_train, RunManager), or one over several servers."""

from __future__ import annotations

import json
import pickle
import random
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from shoal.compat.topspin.logs import Logger, to_readable_time
from shoal.compat.topspin.param import PARAM_FILE, ParamBase
from shoal.compat.topspin.stopping import LOCK, clear_server, stop_distributed_train, stop_train
from shoal.compat.topspin.workspace import DONE, Workspace, read_result
from shoal.core.errors import UsageError
from shoal.train import launch_groups, modes
from shoal.train.hosts import Host, read_servers
from shoal.train.launch import STOPPED
from shoal.train.launch_groups import Result
from shoal.train.preflight import Needs, Place, Ready

__all__ = [
    "RunManager",
    "Server",
    "Task",
    "clear_server",
    "start_distributed_train",
    "start_train",
    "stop_distributed_train",
    "stop_train",
]


_BATCH = "batch_task.run_id_"


class Server:
    """A machine and the GPUs to use there. Without GPUs the numbers only define how many workers it can run."""

    def __init__(self, ip: str | None, gpus: Sequence[int]):
        if not isinstance(gpus, list | tuple) or not gpus:
            raise UsageError(f"Server({ip!r}, {gpus!r}) has no slots", hint="starter.Server(None, [0, 1])")
        self.place = Place(Host(ip or ""), tuple(gpus))


class Task:
    """One training: its parameters without ranges, and the script with its arguments."""

    def __init__(self, param: ParamBase, source_script_and_params: str):
        if not param.is_instance():
            raise UsageError(
                "a Task takes one variant of the parameters",
                hint="Task(p, script) for p in param.generate_all_variants()",
            )
        self.param, self.entry = param, _entry(source_script_and_params)

    def native(self) -> launch_groups.Task:
        param = self.param
        param_file = Path(param.path_meta).absolute() / "param.pkl"
        return launch_groups.Task(
            name=param.path_work,
            entry=self.entry,
            logs=Path(param.path_log),
            workers=int(param.gpu_num),
            env={"DIST_RUN": "1", PARAM_FILE: str(param_file), "PYTHONPATH": ":".join(["./", *filter(None, sys.path)])},
            env_at=lambda ready, slots: {"avail_gpus": ",".join(map(str, slots)), "worker_IP": ready.address},
            outcome=lambda: _noted(param),
            why=lambda: _why(param),
            score=lambda: read_result(param.path_work).get("best"),
            begin=lambda places: self._begin(param_file, places),
        )

    def _begin(self, param_file: Path, places: Sequence[Ready]) -> None:
        param: Any = self.param
        param.create_workspace()
        param.worker_IPs = ",".join(ready.address for ready in places)
        Workspace(param, rank=0).record(**{**read_result(param.path_work), "status": "starting", "error": None})
        # The folder exists now, but each worker creates it again if necessary.
        vars(param).pop("_workspace_created", None)
        param_file.write_bytes(pickle.dumps(param))


class RunManager:
    """Runs tasks over servers, as many at once as there are slots: `RunManager(tasks, servers).run()`."""

    avail_opts = ("no_GPU_check", "run_tag")

    def __init__(self, tasks: Sequence[Task], servers: Sequence[Server], *, root: Path | None = None, **options: Any):
        """Create a batch of tasks. `root` is the folder of an existing batch to continue."""
        unknown = sorted(set(options) - set(self.avail_opts))
        if unknown or not tasks or not servers:
            said = f"there is no option {unknown[0]}" if unknown else f"there is no {'task' if servers else 'server'}"
            raise UsageError(f"RunManager: {said}", hint=f"options are {', '.join(self.avail_opts)}")
        # New runs are moved next to each other, so only the names of their folders must differ.
        folders = [
            p.path_work if p.restore_from_last_train else Path(p.path_work).name for p in (t.param for t in tasks)
        ]
        if twice := next((f for f in folders if folders.count(f) > 1), None):
            raise UsageError(f"two tasks have the work folder {twice}", hint="give each its own with param.clone()")
        self._tasks, self._servers, self._options = list(tasks), list(servers), options
        self._root = root or self._make_root(Path(tasks[0].param.path_work).parent, options.get("run_tag"))

    @property
    def path_work(self) -> str:
        """Folder of the batch, for the stopper and with the results."""
        return str(self._root)

    def run(self) -> list[Result]:
        for task in self._tasks:
            if not task.param.restore_from_last_train:
                task.param.path_work = str(self._root / Path(task.param.path_work).name)
        tasks = [task.native() for task in self._tasks]
        wants_gpu = any(vars(task.param)["use_gpu"] for task in self._tasks)
        needs = Needs(
            workers=1,
            gpus=wants_gpu,
            paths=_paths(self._tasks),
            check_gpus=not self._options.get("no_GPU_check", False),
        )
        Logger.info(f"#task: {len(tasks)}, #slots: {sum(len(s.place.slots) for s in self._servers)}")
        self._root.mkdir(parents=True, exist_ok=True)
        lock = self._root / LOCK
        lock.touch()
        Logger.info(f"The batch is in {self._root}; to stop it: python -m topspin.estimator.stopper {self._root}")
        try:
            desk = modes.Desk(tell=Logger.info, should_stop=lambda: not lock.exists())
            results = modes.run_pool(tasks, [s.place for s in self._servers], needs, desk)
        finally:
            lock.unlink(missing_ok=True)
        self._report(results)
        return results

    @staticmethod
    def _make_root(folder: Path, tag: str | None) -> Path:
        while True:
            name = f"{_BATCH}{random.SystemRandom().randrange(2**20)}" + (f".{tag}" if tag else "")
            if not (folder / name).exists():
                return folder / name

    def _report(self, results: Sequence[Result]) -> None:
        rows = [
            {
                "path_work": r.task.name,
                "status": r.status,
                "vali_error": r.score,
                "seconds": r.seconds,
                "reason": r.reason,
            }
            for r in results
        ]
        (self._root / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
        scored = sorted((r for r in results if r.score is not None), key=lambda r: r.score or 0.0)
        for place, result in enumerate(scored[:10], 1):
            Logger.info(f"{place}. best vali_error: {result.score:.6g} '{result.task.name}'")
        counts = {s: sum(r.status == s for r in results) for s in ("finished", "failed", "stopped", "skipped")}
        Logger.info("RunManager.run() is done: " + ", ".join(f"{n} {s}" for s, n in counts.items() if n))


def start_train(
    param: ParamBase, source_script_and_params: str, servers: Sequence[Server], **kwargs: Any
) -> list[Result]:
    """Train every variant of the parameters over the servers. Ends the process with an exit code above 0 if one failed.

    With parameters restored from the folder of a batch, only its unfinished variants are trained.
    """
    variants, root = list(param.generate_all_variants()), None
    if param.restore_from_last_train and _BATCH in Path(param.path_work).name:
        root = Path(param.path_work)
        variants = _left_of(root, variants)
        if not variants:
            Logger.info(f"All of {root} is done already.")
            return []
    tasks = [Task(variant, source_script_and_params) for variant in variants]
    results = RunManager(tasks, servers, root=root, **kwargs).run()
    _exit_unless_fine(results)
    return results


def start_distributed_train(param: ParamBase, source_script_and_params: str) -> Result:
    """Train over the servers of `param.servers_file` with `param.gpu_num` workers on each; without a file, on this machine."""
    if not param.is_instance():
        raise UsageError(
            "distributed training takes one variant of the parameters",
            hint="start_train(…) tries all of a ParameterRange",
        )
    task = Task(param, source_script_and_params)
    listed = read_servers(param.servers_file) if param.servers_file else [(Host(), [])]
    places = sorted((Place(host, tuple(slots)) for host, slots in listed), key=lambda place: place.host)
    needs = Needs(
        workers=int(param.gpu_num),
        gpus=bool(vars(param)["use_gpu"]),
        paths=_paths([task]),
        interface=param.net_name,
    )
    began = time.monotonic()
    Logger.info(f"To stop it: python -m topspin.estimator.stopper {param.path_work}")
    # Rank 0 is on the last server, as in TopSpin.
    result = modes.run_distributed(task.native(), [places[-1], *places[:-1]], needs, modes.Desk(tell=Logger.info))
    words = {
        "finished": "succeeds",
        "failed": f"fails: {result.reason}",
        "stopped": "is stopped",
        "skipped": "is skipped",
    }
    score = "" if result.score is None else f", best vali_error: {result.score:.6g}"
    Logger.info(
        f"Distributed running '{param.path_work}' {words[result.status]}{score}, "
        f"taking {to_readable_time(time.monotonic() - began)}."
    )
    _exit_unless_fine([result])
    return result


def _left_of(root: Path, variants: Sequence[ParamBase]) -> list[ParamBase]:
    """Return the variants that are not done, each with its existing folder or a new one."""
    left = []
    for number, variant in enumerate(variants):
        tail = f".automl_{number}" if len(variants) > 1 else ""
        before = next(iter(sorted(p for p in root.glob(f"run.*{tail}") if p.is_dir())), None)
        variant.restore_from_last_train = before is not None
        variant.path_work = str(before or root / f"run.{variant.run_tag}{tail}")
        if before is None or not (before / "meta" / DONE).exists():
            left.append(variant)
    return left


def _exit_unless_fine(results: Sequence[Result]) -> None:
    failed = [r for r in results if r.status == "failed"]
    if failed:
        _exit(f"{len(failed)} of {len(results)} failed; the first is {failed[0].task.name}: {failed[0].reason}", 1)
    if any(r.status == "stopped" for r in results):
        _exit("stopped", STOPPED)


def _exit(words: str, code: int) -> NoReturn:
    print(words, file=sys.stderr)
    raise SystemExit(code)


def _entry(source_script_and_params: str) -> list[str]:
    words = shlex.split(source_script_and_params)
    if not words or not Path(words[0]).is_file():
        raise UsageError(
            f"E1: there is no {words[0] if words else 'script'} in {Path.cwd()}",
            hint="start it in your working directory, and give the script's path relative to it",
        )
    return words


def _paths(tasks: Sequence[Task]) -> list[str]:
    return list(dict.fromkeys(path for task in tasks for path in (task.entry[0], *task.param.data_paths())))


def _noted(param: ParamBase) -> str | None:
    status = read_result(param.path_work).get("status")
    return status if status in ("finished", "stopped", "skipped", "failed") else None


def _why(param: ParamBase) -> str | None:
    """Return the worker's error, or the reason why the training ended early; None if there is neither."""
    found = read_result(param.path_work)
    return found.get("error") or (found.get("reason") if found.get("status") == "failed" else None)
