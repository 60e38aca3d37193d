"""Processes forked from one that has loaded what they need, which would take each of them many seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from shoal.testing.patience import patient


class Workers:
    """A process that has loaded torch and more, and forks a process for each line it is given: see `program`."""

    def __init__(self, program: Path, log: Path, **env: str):
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(program)],
                env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._log = log
        self._facts: dict[tuple[str, str], int] = {}
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, **asked: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()

    def fact(self, name: str, kind: str, timeout_s: float = 60.0) -> int:
        """A peer's `pid` or `exit` code, once it is known."""
        with self._news:
            known = self._news.wait_for(lambda: (name, kind) in self._facts, patient(timeout_s))
            assert known, f"{kind} of {name} is not known\n{self._log.read_text()[-3000:]}"
            return self._facts[name, kind]

    def known(self, name: str, kind: str) -> int | None:
        with self._news:
            return self._facts.get((name, kind))

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(patient(60))  # it may still be loading
        self._reader.join(5)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for said in self._process.stdout:
            facts = json.loads(said)
            name = facts.pop("name")
            with self._news:
                self._facts.update({(name, kind): value for kind, value in facts.items()})
                self._news.notify_all()
