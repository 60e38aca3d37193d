"""Files of a run in its work folder: source, progress and result. Only the first worker writes them, except after a failure."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

from shoal.compat.topspin.logs import Logger
from shoal.compat.topspin.param import ParamBase

RESULT = "result.json"
DONE, FAILED, STOPPED = "TRAIN.DONE", "TRAIN.FAILED", "TRAIN.STOPPED"


class Workspace:
    """Work folder of a run."""

    def __init__(self, param: ParamBase, *, rank: int):
        self._param, self._rank = param, rank
        self.root, self.meta = Path(param.path_work), Path(param.path_meta)
        self._result: dict[str, Any] = {}

    def open(self, *, to_terminal: bool) -> None:
        """Create the folders and open the log. With `to_terminal` the log also goes to the terminal."""
        param, is_main = self._param, self._rank == 0
        param.create_workspace()
        if is_main:
            for mark in (DONE, FAILED, STOPPED):
                (self.meta / mark).unlink(missing_ok=True)
            Path(param.run_lock_file).touch()
            _copy_source(param, self.root)
        file = f"{param.path_log}/log.rank_{self._rank}"
        (Logger.copy_to if to_terminal else Logger.reset_outstream)(file, param.restore_from_last_train)
        Logger.set_level(param.debug_level if is_main else 2)
        self._result = {**read_result(self.root), "status": "running", "error": None}
        self.record()

    def record(self, **facts: Any) -> None:
        """Write the state of the run to result.json, for other processes."""
        self._result |= facts
        if self._rank == 0:
            _write(self.meta / RESULT, json.dumps(self._result, indent=1, default=str).encode())

    def recorded(self, name: str) -> Any:
        """Return a value that was recorded before, or None."""
        return self._result.get(name)

    def keep(self, name: str, value: Any) -> None:
        """Write a pickled value to the folder meta."""
        if self._rank == 0:
            _write(self.meta / name, pickle.dumps(value))

    def end(self, status: str, mark: str | None) -> None:
        """Record the final status and delete the lock file."""
        self.record(status=status)
        if self._rank == 0:
            if mark is not None:
                (self.meta / mark).touch()
            Path(self._param.run_lock_file).unlink(missing_ok=True)
            self._gather_errors()

    def fail(self, error: BaseException, *, is_own: bool) -> None:
        """Record a failure, from any worker. The worker whose own error it is overwrites what others recorded."""
        known = read_result(self.root)
        if is_own or known.get("status") != "failed":
            result = {**known, **self._result, "status": "failed", "error": f"{type(error).__name__}: {error}"[:2000]}
            _write(self.meta / RESULT, json.dumps(result, indent=1, default=str).encode())
        (self.meta / FAILED).touch()
        Path(self._param.run_lock_file).unlink(missing_ok=True)
        self._gather_errors()

    def _gather_errors(self) -> None:
        """Collect the error lines of all logs in one file."""
        lines = []
        for log in sorted(Path(self._param.path_log).glob("log.rank_*")):
            lines += [
                f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines() if " ERR: " in line
            ]
        _write(self.root / "log.error", "".join(f"{line}\n" for line in lines).encode())


def read_result(path_work: str | Path) -> dict[str, Any]:
    """Return the recorded state of a run; empty before its start."""
    try:
        found = json.loads((Path(path_work) / "meta" / RESULT).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _copy_source(param: ParamBase, target: Path) -> None:
    """Copy the file that defines the parameters to the work folder, for later reference."""
    try:
        source = inspect.getsourcefile(type(param))
        if source and Path(source).is_file():
            shutil.copy(source, target)
    except (OSError, TypeError) as error:
        Logger.warn(f"the parameters' source file could not be copied: {error}")


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_bytes(data)
    aside.replace(path)
