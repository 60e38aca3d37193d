"""The private local server: find it, start it when needed (exactly once, however many ask), stop it.

A server writes `Layout.server_file` when it is ready and removes it when it stops in good order.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from shoal.client.patience import PATIENCE_S, POLL_S, Patience
from shoal.client.server_record import (
    ServerRecord,
    health_of,
    is_alive,
    note_launch,
    own_record,
    read_record,
    running_server,
    starting_record,
)
from shoal.core.errors import AuthError, Internal, MissingExtra, NotSignedIn, Refused, ShoalError, TimedOut, Unreachable
from shoal.core.instance import is_held
from shoal.core.private import write_private
from shoal.core.settings import Layout

__all__ = [
    "ServerRecord", "Started", "check_extra", "ensure_local_server", "health_of", "is_alive", "local_key", "own_record",
    "owner_key", "read_record", "running_server", "server_command", "server_environment", "start_server",
    "starting_record", "stop_server",
]  # fmt: skip

STOP_TIMEOUT_S = 30.0
SERVER_MODULES = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "argon2", "cryptography", "jinja2")
_OURS_ALONE = ("SHOAL_URL", "SHOAL_API_KEY", "SHOAL_WORKSPACE")


@dataclass(frozen=True, slots=True)
class Started:
    record: ServerRecord
    is_new: bool
    """False when it was running already."""


def ensure_local_server(layout: Layout, *, say: Callable[[str], None] | None = None) -> tuple[str, str]:
    """Return the private server's URL and its owner's key; starts it if it is not running."""
    record = running_server(layout)
    if record is None:
        if os.environ.get("SHOAL_NO_AUTOSTART", "") not in ("", "0") and not is_held(layout.server_lock):
            raise Unreachable(
                "No server is running, and SHOAL_NO_AUTOSTART forbids starting one.",
                hint="Start it: shoal server start",
            )
        started = start_server(layout, say=say)
        record = started.record
        if started.is_new:
            word = "private " if record.private else ""
            (say or _to_stderr)(f"Started a {word}Shoal server at {record.url} (stop it with `shoal server stop`)")
    return record.url, owner_key(layout, record)


def start_server(
    layout: Layout,
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] | None = None,
    patience_s: float = PATIENCE_S,
    say: Callable[[str], None] | None = None,
) -> Started:
    """Start the server in the background, unless one runs. Of several that ask at once, one starts it and all get it.

    One that is slow to start, or too busy to answer, is waited for while it makes progress: it is neither ended nor joined
    by a second one.
    """
    layout.server_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    patience = Patience(layout, say or _to_stderr, patience_s)
    with (layout.server_dir / "start.lock").open("a") as lock:
        while True:
            if record := running_server(layout):
                return Started(record, is_new=False)
            # Whoever holds the server lock is a server. The start lock covers the moment before a new one has it, and
            # falls with its holder, so that a killed starter leaves nothing to clean up; its server is in the record.
            if not is_held(layout.server_lock) and starting_record(layout) is None and _take(lock):
                with _released(lock):
                    if not is_held(layout.server_lock):
                        if command is None:
                            check_extra()
                        whole = [*(command or server_command(layout)), *arguments]
                        return Started(_launch(layout, whole, patience), is_new=True)
            patience.step()


def stop_server(layout: Layout, *, timeout_s: float = STOP_TIMEOUT_S) -> ServerRecord | None:
    """Ask the server to stop and wait until it is gone; None when none was running on this very directory."""
    record = own_record(layout) or starting_record(layout)
    if record is None and is_held(layout.server_lock):
        raise Refused(
            f"A server holds {layout.root}, but its process cannot be seen from here: it has just begun to start, or runs in "
            "another container or on another host.",
            hint="Try again in a moment, or stop it where it runs: shoal server stop",
        )
    if record is None:
        return None
    os.kill(record.pid, signal.SIGTERM)
    if not _wait_until(lambda: not is_alive(record), timeout_s):
        raise TimedOut(f"The server (pid {record.pid}) has not stopped yet.", hint="Look at its log: shoal server log")
    return record


def owner_key(layout: Layout, record: ServerRecord) -> str:
    """Return the owner's key; refused when anyone else could have read it."""
    if not record.private:
        raise NotSignedIn(
            f"The server at {record.url} is open to the network, so it needs you to sign in.",
            hint="shoal login, or shoal signup for a first account",
        )
    try:
        status = layout.owner_key.stat()
        if status.st_mode & 0o077 or status.st_uid != os.getuid():
            raise AuthError(
                f"{layout.owner_key} can be read by others, so it is not used.",
                hint=f"chmod 600 {layout.owner_key}, and make a new key if others have had access",
            )
        return layout.owner_key.read_text().strip()
    except FileNotFoundError:
        raise NotSignedIn(
            f"{layout.owner_key} is missing.", hint="Start the server anew: shoal down && shoal up"
        ) from None


def local_key(layout: Layout, url: str) -> str | None:
    """Return the owner's key, if the URL is that of this data directory's private server."""
    record = running_server(layout)
    return owner_key(layout, record) if record and record.private and record.url.rstrip("/") == url else None


def check_extra() -> None:
    missing = [name for name in SERVER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"Running a server needs packages that are not installed ({', '.join(missing)}).",
            hint="pip install 'shoal[server]'   (or use another server: shoal login --url URL)",
        )


def server_command(layout: Layout) -> list[str]:
    # -P: a folder named like one of our imports, in whatever directory this starts, must not shadow it.
    return [sys.executable, "-P", "-m", "shoal.server", "--home", str(layout.root)]


def server_environment(layout: Layout) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in _OURS_ALONE}
    return {**kept, "SHOAL_HOME": str(layout.root)}


def _launch(layout: Layout, command: list[str], patience: Patience) -> ServerRecord:
    """Start it detached and wait until it has written its file and answers."""
    if not layout.server_log.exists():
        write_private(layout.server_log, "")
    with layout.server_log.open("ab") as log:
        log_start = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=layout.server_dir,
            env=server_environment(layout),
        )
    try:
        note_launch(layout, process.pid)
        while True:
            code = process.poll()
            if record := running_server(layout):
                return record
            # A server started by other means at the same moment may have been first; then that one is waited for.
            if code is not None and not is_held(layout.server_lock):
                raise _why_ended(layout, log_start, code)
            patience.step(process.pid if code is None else None)
    except KeyboardInterrupt:
        patience.say("The server goes on starting. See how it is: shoal server status. Stop it: shoal down")
        raise


def _take(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _released(lock: IO[str]) -> Iterator[None]:
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _why_ended(layout: Layout, start: int, code: int, lines: int = 12) -> ShoalError:
    """Return the server's own refusal, where it gave one; else the end of its log."""
    with layout.server_log.open("rb") as log:
        log.seek(start)
        said = log.read().decode(errors="replace").strip().splitlines()
    at = max((i for i, line in enumerate(said) if line.startswith("error: ")), default=None)
    if code == Refused.exit_code and at is not None:
        return Refused(
            said[at].removeprefix("error: "), hint=" ".join(said[at + 1 :]) or f"Its log: {layout.server_log}"
        )
    tail = "".join(f"\n  {line}" for line in said[-lines:])
    return Internal(f"The server ended while starting (exit code {code}).{tail}", hint=f"Its log: {layout.server_log}")


def _wait_until(is_true: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)
