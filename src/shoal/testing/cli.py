"""Run the command line in this process: the same `main`, without the second that an interpreter and its imports take."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any

from shoal.testing.patience import patient

_OWN_PROCESS = frozenset({"attach", "cp", "replay", "run", "shell", "ssh", "verify-resume"})
"""Commands that run the user's code or hand over their terminal, and therefore need their own process."""


def run_cli(
    args: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    process: bool = False,
    input: str | None = None,
    timeout: float = 240,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run `shoal ARGS` with this environment and working directory: in this process, or in its own where that matters."""
    if process or options or _needs_process(args) or threading.current_thread() is not threading.main_thread():
        return subprocess.run(
            [sys.executable, "-m", "shoal.cli", *args],
            cwd=cwd,
            env=dict(env),
            input=input,
            capture_output=True,
            text=True,
            timeout=patient(timeout),
            check=False,
            **options,
        )
    # Imported by name, because the command line is a layer above this one.
    main = importlib.import_module("shoal.cli.main").main
    out = importlib.import_module("shoal.cli.shared.output").out
    session = importlib.import_module("shoal.cli.shared.session").session
    with ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(3)]
        given, stdout, stderr = streams
        given.write(input or "")
        given.seek(0)
        stack.enter_context(redirect_stdout(stdout))
        stack.enter_context(redirect_stderr(stderr))
        stack.enter_context(_place(given, cwd, env))
        try:
            code = main(args)
        finally:
            out.json = out.quiet = out.wide = False
            session.url = session.workspace = session.after_dashes = None
        return subprocess.CompletedProcess(["shoal", *args], code, _text(stdout), _text(stderr))


def _needs_process(args: Sequence[str]) -> bool:
    """Check whether a command needs its own process. `shoal run` does, `shoal training run` does not."""
    words = [word for word in args[: args.index("--") if "--" in args else None] if not word.startswith("-")][:2]
    return bool(words) and (words[0] in _OWN_PROCESS or (words[-1] in _OWN_PROCESS - {"run"}))


@contextmanager
def _place(stdin: IO[str], cwd: Path, env: Mapping[str, str]) -> Iterator[None]:
    before, here, read = dict(os.environ), Path.cwd(), sys.stdin
    try:
        sys.stdin = stdin
        os.chdir(cwd)
        _set(env)
        yield
    finally:
        sys.stdin = read
        os.chdir(here)
        _set(before)


def _set(env: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(env):
        del os.environ[name]
    os.environ.update(env)


def _text(stream: IO[str]) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()
