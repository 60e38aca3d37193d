"""Warm starts: decides whether the workers of a node may start in a preloaded interpreter, and starts them there.

That is safe if a new interpreter would behave like the forked one: the same program, the same values of all variables that are
read only at start-up or while a preloaded module is imported, and no file of the job that shadows a preloaded module.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shoal.agent.prefork.worker import MOST_WORKERS, WaitingWorker
from shoal.agent.workers.runtime import without_startup
from shoal.agent.workers.workers import LaunchFailed, Output, Spec, Workers

_EARLY = re.compile(
    r"PYTHON|HOME$|LD_|LANG$|LANGUAGE$|LC_|TZ$|MALLOC_|GLIBC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|DNNL_|ONEDNN_|ATEN_"
    r"|NPY_|NUMPY_|TORCH(?!ELASTIC_)|PYTORCH_|TRITON_|(?:CUDA|NVIDIA|HIP|ROCR|HSA|XPU|ZE)_(?!VISIBLE_DEVICES$)"
)
"""Variables that are read when a process starts, or when torch or numpy is imported; those of torchrun are read later."""
_SET_BY_SCRIPT = re.compile(rb"\b(?:OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|ATEN|NPY|NUMPY|TORCH[A-Z]*|PYTORCH)_[A-Z]")
_USES = re.compile(rb"torch|shoal|transformers|lightning|accelerate|diffusers|NetmindMixins|topspin|palframe")
"""Packages that import torch. For a script without any of them, a fork costs more than a new interpreter."""
_MOST_SOURCE = 4 << 20
"""Largest source in bytes that is searched for variables it sets; larger ones start cold."""
_HOLD = ["/bin/sh", "-c", "echo $$; read _"]
"""Command that keeps a sandbox alive until its standard input ends."""


def why_cold(specs: list[Spec], python: str, source: Path, interpreter_env: Mapping[str, str]) -> str | None:
    """Return the reason against a warm start, or None. `interpreter_env` is the environment the prefork parent started with."""
    if len(specs) > MOST_WORKERS:
        return "many workers"
    found = (_reason_in_spec(spec, python, source, interpreter_env) for spec in specs)
    return next(filter(None, found), None) or _reason_in_source(source)


def _reason_in_spec(spec: Spec, python: str, source: Path, interpreter_env: Mapping[str, str]) -> str | None:
    argv = spec.argv
    if spec.rank is None or spec.group or argv[:2] != [python, "-u"] or len(argv) < 3 or not argv[2].endswith(".py"):
        return "not a plain Python script"
    if python != sys.executable:
        return "another interpreter"
    script = source / argv[2]
    if not script.is_file():
        return "no such script"
    # A warm worker checks for the promised device by itself (script.py).
    if different := early(without_startup(spec.env)).items() ^ early(interpreter_env).items():
        return f"{min(different)[0]} is read when the interpreter starts"
    if shadowed := _modules(script.resolve().parent) & {name.partition(".")[0] for name in sys.modules}:
        return f"{min(shadowed)} is shadowed by a module of the job"
    return None


def early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _EARLY.match(name)}


def _modules(folder: Path) -> set[str]:
    """Return the names of the modules that can be imported from a folder."""
    return {
        e.name.partition(".")[0] for e in os.scandir(folder) if e.is_dir() or e.name.endswith((".py", ".pyc", ".so"))
    }


def _reason_in_source(source: Path) -> str | None:
    left, gains = _MOST_SOURCE, False
    for file in _python_files(source):
        left -= file.stat().st_size
        if left < 0:
            return "a large source"
        text = file.read_bytes()
        if found := _SET_BY_SCRIPT.search(text):
            return f"{file.name} mentions {found[0].decode()}…, which is read when torch is imported"
        gains = gains or _USES.search(text) is not None
    return None if gains else "it does not use torch"


def _python_files(source: Path) -> Iterable[Path]:
    return (Path(folder, name) for folder, _, names in os.walk(source) for name in names if name.endswith(".py"))


class WarmWorkers(Workers):
    """Runs workers in a preloaded interpreter. `LaunchFailed` means that nothing of the job has run."""

    def __init__(self, capture: Output, waiting: WaitingWorker, marks: Iterable[str]):
        super().__init__(capture)
        self._waiting, self._marks = waiting, list(marks)
        self._hold: socket.socket | None = None
        """Standard input of the process that keeps the sandbox alive; closing it ends the sandbox."""

    def start(
        self, specs: list[Spec], cwd: Path, wrap: Callable[[list[str]], list[str]], *, reap: bool, env: dict[str, str]
    ) -> None:
        """Start the workers in the preloaded interpreter; `reap` is ignored, because it always adopts orphaned processes."""
        del reap
        self._socket, theirs = socket.socketpair()
        own = self._capture.pipe(None, "sys")
        pipes = [self._capture.pipe(spec.rank, stream) for spec in specs for stream in ("out", "err")]
        workers = [{"argv": spec.argv, "env": spec.env, "cpus": spec.cpus} for spec in specs]
        try:
            target, holder = self._open_sandbox(wrap, own, env)
            request = {"cwd": str(cwd), "workers": workers, "marks": self._marks, "own_env": env}
            self._waiting.start(request | {"target": target, "holder": holder}, theirs.fileno(), own, pipes)
        except OSError as error:
            raise LaunchFailed(str(error)) from error
        finally:
            theirs.close()
            for fd in (own, *pipes):
                os.close(fd)
        word, _, rest = self._first_line(self._socket).partition(" ")
        if word != "hello":
            raise LaunchFailed(rest)
        self.root_pid = int(rest)

    def _open_sandbox(
        self, wrap: Callable[[list[str]], list[str]], own: int, env: dict[str, str]
    ) -> tuple[int | None, int]:
        """Start the sandbox; return the outer pid of a process inside and the inner pid of one with a worker's privileges.

        Without a sandbox the first is None.
        """
        argv = wrap(_HOLD)
        if argv == _HOLD:
            return None, 0
        self._hold, theirs = socket.socketpair()
        info_r, info_w = os.pipe()
        after = argv.index("bwrap") + 1
        argv[after:after] = ["--info-fd", str(info_w)]
        try:
            self._process = subprocess.Popen(
                argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=own, env=env, cwd="/", pass_fds=[info_w]
            )
        finally:
            theirs.close()
            os.close(info_w)
        try:
            holder = int(self._first_line(self._hold))
            return int(json.loads(os.read(info_r, 4096))["child-pid"]), holder
        finally:
            os.close(info_r)

    def _end_sandbox(self) -> None:
        if self._hold is not None:
            self._hold.close()
