"""The files of a run in its work folder: what it is, how it goes, how it ended. Written by the first worker, but for a failure."""

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
    def __init__(self, param: ParamBase, *, rank: int):
        self._param, self._rank = param, rank
        self.root, self.meta = Path(param.path_work), Path(param.path_meta)
        self._result: dict[str, Any] = {}

    def open(self, *, to_terminal: bool) -> None:
        """Make what is missing. With `to_terminal` the log goes there as well as to its file."""
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
        self.tell()

    def tell(self, **facts: Any) -> None:
        """Put down how it stands, for whoever looks at the run from outside."""
        self._result |= facts
        if self._rank == 0:
            _write(self.meta / RESULT, json.dumps(self._result, indent=1, default=str).encode())

    def told(self, name: str) -> Any:
        """What was put down before."""
        return self._result.get(name)

    def keep(self, name: str, value: Any) -> None:
        if self._rank == 0:
            _write(self.meta / name, pickle.dumps(value))

    def end(self, status: str, mark: str | None) -> None:
        self.tell(status=status)
        if self._rank == 0:
            if mark is not None:
                (self.meta / mark).touch()
            Path(self._param.run_lock_file).unlink(missing_ok=True)
            self._gather_errors()

    def fail(self, error: BaseException, *, is_own: bool) -> None:
        """Any worker may, and the one whose own error it is has the word."""
        known = read_result(self.root)
        if is_own or known.get("status") != "failed":
            told = {**known, **self._result, "status": "failed", "error": f"{type(error).__name__}: {error}"[:2000]}
            _write(self.meta / RESULT, json.dumps(told, indent=1, default=str).encode())
        (self.meta / FAILED).touch()
        Path(self._param.run_lock_file).unlink(missing_ok=True)
        self._gather_errors()

    def _gather_errors(self) -> None:
        """All lines of errors in one file."""
        lines = []
        for log in sorted(Path(self._param.path_log).glob("log.rank_*")):
            lines += [
                f"{log.name}: {line}" for line in log.read_text(errors="replace").splitlines() if " ERR: " in line
            ]
        _write(self.root / "log.error", "".join(f"{line}\n" for line in lines).encode())


def read_result(path_work: str | Path) -> dict[str, Any]:
    """What a run has put down; empty before it began."""
    try:
        found = json.loads((Path(path_work) / "meta" / RESULT).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _copy_source(param: ParamBase, target: Path) -> None:
    """The file that defines the parameters, to see later what they were."""
    try:
        source = inspect.getsourcefile(type(param))
        if source and Path(source).is_file():
            shutil.copy(source, target)
    except (OSError, TypeError) as error:
        Logger.warn(f"the parameters' file is not copied: {error}")


def _write(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_bytes(data)
    aside.replace(path)
