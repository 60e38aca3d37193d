"""Programs of a swarm as processes forked from the tests' own, which has loaded torch and hivemind: each would need seconds for that."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from shoal.testing.patience import wait_until


class Forked:
    """A process, leader of a session of its own, that runs `main` as if `argv` had been typed; `said` and `log` are files."""

    def __init__(self, main: Callable[[], int | None], argv: list[str], said: Path, log: Path):
        theirs, self._stdin = os.pipe()
        # Of those that are killed, sockets are left; their names must be short.
        self._folder = tempfile.mkdtemp(prefix="sw-")
        self._code: int | None = None
        files = [theirs, *(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in (said, log))]
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._stdin)
            os.environ["TMPDIR"] = tempfile.tempdir = self._folder
            _become(main, argv, files)
        for file in files:
            os.close(file)

    def write(self, line: bytes) -> None:
        os.write(self._stdin, line)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self) -> int:
        wait_until(lambda: self.poll() is not None, "the process does not end", limit_s=30)
        assert self._code is not None
        return self._code

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def close(self) -> None:
        """End it politely, then kill all that it has started."""
        self.terminate()
        deadline = time.monotonic() + 10
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        os.close(self._stdin)
        shutil.rmtree(self._folder, ignore_errors=True)


def make_own_locks() -> None:
    """Replace the locks of hivemind in a process that was forked after it was imported.

    They are semaphores in memory shared with the parent and so with every other fork: one that is killed while it holds such
    a lock would stop all others at their next step.
    """
    import multiprocessing

    from hivemind.utils.asyncio import _AsyncContextWrapper
    from hivemind.utils.mpfuture import MPFuture

    MPFuture.reset_backend()
    _AsyncContextWrapper.EXECUTOR_LOCK = multiprocessing.Lock()


def _become(main: Callable[[], int | None], argv: list[str], files: list[int]) -> NoReturn:
    """Never return into the tests: the copy of their stack ends here."""
    code = 1
    try:
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = argv
        make_own_locks()
        code = main() or 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
