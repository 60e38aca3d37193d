"""Workers that start in a preloaded interpreter: when that is safe, and how it is done. All others start by their command line.

It is safe when a new interpreter would do nothing else than the forked one: same program, nothing set that is only looked at
while it starts or while what is preloaded is imported, and no file of the job in the place of a module that is preloaded.
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

from shoal.agent.runtime import without_startup
from shoal.agent.seed import Seed
from shoal.agent.workers import LaunchFailed, Output, Spec, Workers

_EARLY = re.compile(
    r"PYTHON|HOME$|LD_|LANG$|LANGUAGE$|LC_|TZ$|MALLOC_|GLIBC_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|GOTO_|BLIS_|DNNL_|ONEDNN_|ATEN_"
    r"|NPY_|NUMPY_|TORCH|PYTORCH_|TRITON_|(?:CUDA|NVIDIA|HIP|ROCR|HSA|XPU|ZE)_(?!VISIBLE_DEVICES$)"
)
"""Variables that count from the start of a process, or from the import of torch or numpy."""
_SET_BY_SCRIPT = re.compile(rb"\b(?:OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|ATEN|NPY|NUMPY|TORCH[A-Z]*|PYTORCH)_[A-Z]")
_USES = re.compile(rb"torch|shoal|transformers|lightning|accelerate|diffusers|NetmindMixins|topspin|palframe")
"""What brings torch in. To a script without any of it, a fork of all that would cost more than a new interpreter."""
_MOST_SOURCE = 4 << 20
"""Larger sources are not searched for what they might set: they start as ever."""
_HOLD = ["/bin/sh", "-c", "echo $$; read _"]
"""Keeps a sandbox until its standard input ends."""


def why_cold(specs: list[Spec], python: str, source: Path, interpreter_env: Mapping[str, str]) -> str | None:
    """What speaks against a warm start of these, or None. `interpreter_env`: what the nursery was started with."""
    if len(specs) != 1:
        return "several workers"
    [spec] = specs
    argv = spec.argv
    if spec.rank is None or spec.group or argv[:2] != [python, "-u"] or len(argv) < 3 or not argv[2].endswith(".py"):
        return "not a plain Python script"
    if python != sys.executable:
        return "another interpreter"
    script = source / argv[2]
    if not script.is_file():
        return "no such script"
    # Whether a promised device is there, a warm worker finds out by itself (script.py).
    if different := early(without_startup(spec.env)).items() ^ early(interpreter_env).items():
        return f"{min(different)[0]} counts from the start of the interpreter"
    if shadowed := _modules(script.resolve().parent) & {name.partition(".")[0] for name in sys.modules}:
        return f"{min(shadowed)} is a module of the job's own"
    return _what_the_source_says(source)


def early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if _EARLY.match(name)}


def _modules(folder: Path) -> set[str]:
    """What could be imported from there."""
    return {
        e.name.partition(".")[0] for e in os.scandir(folder) if e.is_dir() or e.name.endswith((".py", ".pyc", ".so"))
    }


def _what_the_source_says(source: Path) -> str | None:
    left, gains = _MOST_SOURCE, False
    for file in _python_files(source):
        left -= file.stat().st_size
        if left < 0:
            return "a large source"
        text = file.read_bytes()
        if found := _SET_BY_SCRIPT.search(text):
            return f"{file.name} has to do with {found[0].decode()}…, which counts from the import of torch"
        gains = gains or _USES.search(text) is not None
    return None if gains else "it does not use torch"


def _python_files(source: Path) -> Iterable[Path]:
    return (Path(folder, name) for folder, _, names in os.walk(source) for name in names if name.endswith(".py"))


class WarmWorkers(Workers):
    """One worker, grown from a seed. LaunchFailed means that nothing of the job has run."""

    def __init__(self, capture: Output, seed: Seed, marks: Iterable[str]):
        super().__init__(capture)
        self._seed, self._marks = seed, list(marks)
        self._hold: socket.socket | None = None
        """Closed, it ends the sandbox."""

    def start(
        self, specs: list[Spec], cwd: Path, wrap: Callable[[list[str]], list[str]], *, reap: bool, env: dict[str, str]
    ) -> None:
        del reap  # a seed inherits the orphans of its worker wherever it is
        [spec] = specs
        self._socket, theirs = socket.socketpair()
        own, out, err = (
            self._capture.pipe(*which) for which in ((None, "sys"), (spec.rank, "out"), (spec.rank, "err"))
        )
        try:
            target, holder = self._open_sandbox(wrap, own, env)
            order = {"cwd": str(cwd), "argv": spec.argv, "env": spec.env, "marks": self._marks, "own_env": env}
            self._seed.grow(order | {"target": target, "holder": holder}, theirs.fileno(), own, out, err)
        except OSError as error:
            raise LaunchFailed(str(error)) from error
        finally:
            theirs.close()
            for fd in (own, out, err):
                os.close(fd)
        word, _, rest = self._first_line(self._socket).partition(" ")
        if word != "hello":
            raise LaunchFailed(rest)
        self.root_pid = int(rest)

    def _open_sandbox(
        self, wrap: Callable[[list[str]], list[str]], own: int, env: dict[str, str]
    ) -> tuple[int | None, int]:
        """(pid of a process inside, pid of one with a worker's privileges as it is known inside); None without a sandbox."""
        argv = wrap(_HOLD)
        if argv == _HOLD:
            return None, 0
        self._hold, theirs = socket.socketpair()
        info_r, info_w = os.pipe()
        argv[1:1] = ["--info-fd", str(info_w)]
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
