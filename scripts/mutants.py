"""Plants bugs one by one in a copy of the tree and runs the tests that should notice.

    ./scripts/mutants                    all of them, and a table: mutant, the test that caught it, tier, seconds
    ./scripts/mutants --list             their names and what is wrong with each
    ./scripts/mutants -k fsync           those with "fsync" in their name
    ./scripts/mutants --jobs 2           two at a time, each in a copy of its own

A mutant is caught when its tests pass without it and one of them fails with it. Tests that cannot be collected, a fixture
that fails, or a text to replace that is not found exactly once are errors: they say nothing about the tests' power.
The exit code is 0 if all were caught, else 1. The mutants are in scripts/bugs.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bugs import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "scripts", "docs", "examples", "bench", "console")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "node_modules", ".*_cache", ".hypothesis")
PYTEST = (
    "-m",
    "pytest",
    "-q",
    "-x",
    "--tb=no",
    "-n",
    "0",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
    "--color=no",
)
LIMIT_S = 900.0
"""Time limit of one run of pytest; single tests have shorter limits."""
FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    mutant: Mutant
    caught_by: str | None = None
    """The first test that failed; None if the mutant survived or the run says nothing."""
    error: str | None = None
    seconds: float = 0.0

    @property
    def text(self) -> str:
        if self.error:
            return f"ERROR: {self.error}"
        return self.caught_by.partition("[")[0] if self.caught_by else "SURVIVED"


def main() -> int:
    options = parse(sys.argv[1:])
    chosen = [mutant for mutant in MUTANTS if options.k.lower() in mutant.name.lower()]
    if not chosen:
        sys.exit(f"No mutant has '{options.k}' in its name. All names: ./scripts/mutants --list")
    if options.list:
        print(table([(m.name, m.fault, m.tier, m.file) for m in chosen], ("mutant", "fault", "tier", "file")))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        results = Laboratory(options.jobs).run(chosen)
    except KeyboardInterrupt:
        print("interrupted; the copies are removed", file=sys.stderr)
        return 130
    rows = [(r.mutant.name, r.text, r.mutant.tier, f"{r.seconds:.1f}") for r in results]
    print(table(rows, ("mutant", "caught by", "tier", "seconds")))
    caught = sum(r.caught_by is not None for r in results)
    print(f"{caught} of {len(results)} caught")
    return 0 if caught == len(results) else 1


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./scripts/mutants",
        description="Plant bugs one by one in a copy of the tree and run the tests that should notice.",
        epilog="examples:\n  ./scripts/mutants\n  ./scripts/mutants -k fsync\n  ./scripts/mutants --jobs 2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="print the mutants instead of running them")
    parser.add_argument("-k", metavar="NAME", default="", help="only mutants with this in their name")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="how many to try at a time (default: 1)")
    options = parser.parse_args(words)
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options


def table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> str:
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    )


def mutated(text: str, mutant: Mutant) -> str:
    """The file's text with the bug in it; ValueError unless there is exactly one place for it."""
    found = text.count(mutant.old)
    if found != 1:
        raise ValueError(f"its old text is found {found} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


class Laboratory:
    """Copies of the tree, as many as are worked in at a time, and what was found out about the tests without mutants."""

    def __init__(self, jobs: int):
        self._jobs = jobs
        self._free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._faults: dict[tuple[str, ...], str | None] = {}
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._done = 0

    def run(self, mutants: Sequence[Mutant]) -> list[Result]:
        stop = threading.Event()
        with tempfile.TemporaryDirectory(prefix="shoal-mutants-", ignore_cleanup_errors=True) as folder:
            for number in range(min(self._jobs, len(mutants))):
                self._free.put(Copy(Path(folder) / str(number), stop))
            with ThreadPoolExecutor(self._jobs) as pool:
                try:
                    return list(pool.map(lambda mutant: self._try(mutant, len(mutants)), mutants))
                except BaseException:
                    stop.set()
                    pool.shutdown(cancel_futures=True)
                    raise

    def _try(self, mutant: Mutant, total: int) -> Result:
        copy = self._free.get()
        try:
            result = self._judge(copy, mutant)
        finally:
            self._free.put(copy)
        with self._lock:
            self._done += 1
            print(f"{self._done}/{total} {mutant.name} ({result.seconds:.1f} s): {result.text}", file=sys.stderr)
        return result

    def _judge(self, copy: Copy, mutant: Mutant) -> Result:
        if fault := self._fault_without(copy, mutant.tests):
            return Result(mutant=mutant, error=fault)
        began = time.monotonic()
        try:
            with copy.planted(mutant):
                code, output = copy.test(mutant.tests)
        except (OSError, ValueError) as error:
            return Result(mutant=mutant, error=str(error))
        seconds = time.monotonic() - began
        failed = FAILED.findall(output)
        if code == 1 and failed:
            return Result(mutant=mutant, caught_by=failed[0], seconds=seconds)
        error = None if code == 0 else f"pytest ended with {code} and no failed test: {last_line(output)}"
        return Result(mutant=mutant, error=error, seconds=seconds)

    def _fault_without(self, copy: Copy, tests: tuple[str, ...]) -> str | None:
        """Why these tests say nothing: they fail without any mutant. Looked at once per selection."""
        with self._lock:
            lock = self._locks.setdefault(tests, threading.Lock())
        with lock:
            if tests not in self._faults:
                code, output = copy.test(tests)
                bad = f"without the mutant its tests end with {code}: {last_line(output)}"
                self._faults[tests] = bad if code else None
            return self._faults[tests]


class Copy:
    """A copy of the tree, whose package is imported in place of the installed one."""

    def __init__(self, root: Path, stop: threading.Event):
        self._root, self._stop = root, stop
        for name in FOLDERS:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=LEFT_OUT, symlinks=True)
        for path in ROOT.iterdir():
            if path.is_file() and not path.is_symlink():
                shutil.copy2(path, root / path.name)
        code, output = self._python("-c", "import shoal; print(shoal.__file__)")
        if code or not Path(output.strip()).is_relative_to(root):
            raise RuntimeError(f"the copy's package is not the one that is imported: {output.strip()}")

    def test(self, tests: Sequence[str]) -> tuple[int, str]:
        return self._python(*PYTEST, *tests)

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        path = self._root / mutant.file
        original = path.read_text(encoding="utf-8")
        self._write(path, mutated(original, mutant))
        try:
            yield
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        """Bytecode goes too: a change of equal length within one second would not be noticed."""
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def _python(self, *words: str) -> tuple[int, str]:
        """(exit code, output). Ended with all its children when we are interrupted or it takes too long."""
        environment = os.environ | {"PYTHONPATH": str(self._root / "src"), "PYTHONUNBUFFERED": "1"}
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self._root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait(process)
            finally:
                end(process)
            output.seek(0)
            return process.returncode, output.read()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < deadline and not self._stop.is_set():
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue


def end(process: subprocess.Popen[bytes]) -> None:
    """First as by Ctrl-C, so that fixtures end what they have started; then by force."""
    for number, patience_s in ((signal.SIGINT, 30.0), (signal.SIGKILL, 30.0)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue


def last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("ERROR", "FAILED", "E "))]
    return (told or lines or ["no output"])[-1][:200]


if __name__ == "__main__":
    sys.exit(main())
