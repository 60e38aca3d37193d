"""The private local server: find it, start it when needed (only once, even if several processes ask), stop it.

A server writes `Layout.server_file` when it is ready, and removes it when it stops normally.
"""

from __future__ import annotations

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
from shoal.core import system
from shoal.core.errors import (
    AuthError,
    Internal,
    MissingExtra,
    NotSignedIn,
    Refused,
    ShoalError,
    TimedOut,
    Unreachable,
    UsageError,
)
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
    """A running server."""

    record: ServerRecord
    is_new: bool
    """False if it was already running."""


def ensure_local_server(layout: Layout, *, say: Callable[[str], None] | None = None) -> tuple[str, str]:
    """Return the private server's URL and its owner's key. Start the server if it is not running."""
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
    """Start the server in the background if none runs. Of several processes that ask at once, one starts it and all get it.

    A server that is slow to start, or too busy to answer, is waited for as long as it makes progress. It is never killed, and
    no second one is started beside it.
    """
    layout.server_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    patience = Patience(layout, say or _to_stderr, patience_s)
    with (layout.server_dir / "start.lock").open("a") as lock:
        while True:
            if record := running_server(layout):
                return Started(record, is_new=False)
            # Only a server holds the server lock. The start lock covers the time until a new server has it. The kernel
            # releases it with its holder, so a killed starter leaves nothing to clean up: its server is in the record.
            if not is_held(layout.server_lock) and starting_record(layout) is None and _try_lock(lock):
                with _released(lock):
                    if not is_held(layout.server_lock):
                        if command is None:
                            check_extra()
                        whole = [*(command or server_command(layout)), *arguments]
                        return Started(_launch(layout, whole, patience), is_new=True)
            patience.step()


def stop_server(layout: Layout, *, timeout_s: float = STOP_TIMEOUT_S) -> ServerRecord | None:
    """Request the server to stop and wait until it has ended. Return None if none was running on this data directory."""
    record = own_record(layout) or starting_record(layout)
    if record is None and is_held(layout.server_lock):
        raise Refused(
            f"A server uses {layout.root}, but its process is not visible from here: it has just begun to start, or it runs in "
            "another container or on another host.",
            hint="Try again in a moment, or stop it where it runs: shoal server stop",
        )
    if record is None:
        return None
    os.kill(record.pid, signal.SIGTERM)
    if not _wait_until(lambda: not is_alive(record), timeout_s):
        raise TimedOut(f"The server (pid {record.pid}) has not stopped yet.", hint="See its log: shoal server log")
    return record


def owner_key(layout: Layout, record: ServerRecord) -> str:
    """Return the owner's key; raise AuthError if other users could have read it."""
    if not record.private:
        raise NotSignedIn(
            f"The server at {record.url} is open to the network and requires you to sign in.",
            hint="Sign in with shoal login, or create a first account with shoal signup.",
        )
    try:
        status = layout.owner_key.stat()
        if status.st_mode & 0o077 or status.st_uid != system.user_id():
            raise AuthError(
                f"{layout.owner_key} can be read by other users, so it is not used.",
                hint=f"chmod 600 {layout.owner_key}, and create a new key if others may have read it",
            )
        return layout.owner_key.read_text().strip()
    except FileNotFoundError:
        raise NotSignedIn(
            f"{layout.owner_key} is missing.", hint="Restart the server: shoal down && shoal up"
        ) from None


def local_key(layout: Layout, url: str) -> str | None:
    """Return the owner's key if the URL belongs to this data directory's private server; otherwise None."""
    record = running_server(layout)
    return owner_key(layout, record) if record and record.private and record.url.rstrip("/") == url else None


def check_extra() -> None:
    """Raise MissingExtra if packages that a server needs are not installed."""
    missing = [name for name in SERVER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(
            f"Running a server needs packages that are not installed ({', '.join(missing)}).",
            hint="pip install 'shoal-train[server]'   (or use another server: shoal login --url URL)",
        )


def server_command(layout: Layout) -> list[str]:
    # -P: a folder in the current directory that is named like one of our imports must not shadow it.
    return [sys.executable, "-P", "-m", "shoal.server", "--home", str(layout.root)]


def server_environment(layout: Layout) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in _OURS_ALONE}
    return {**kept, "SHOAL_HOME": str(layout.root)}


def _launch(layout: Layout, command: list[str], patience: Patience) -> ServerRecord:
    """Start the server detached, and wait until it has written its file and answers."""
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
            # Another server may have been started at the same moment and got the lock first; then wait for that one.
            if code is not None and not is_held(layout.server_lock):
                raise _why_ended(layout, log_start, code)
            patience.step(process.pid if code is None else None)
    except KeyboardInterrupt:
        patience.say("The server continues to start. Check it: shoal server status. Stop it: shoal down")
        raise


def _try_lock(lock: IO[str]) -> bool:
    try:
        system.flock(lock, system.LOCK_EX | system.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _released(lock: IO[str]) -> Iterator[None]:
    try:
        yield
    finally:
        system.flock(lock, system.LOCK_UN)


def _why_ended(layout: Layout, start: int, code: int, lines: int = 12) -> ShoalError:
    """Return the server's own error from its log, or else an error with the end of the log."""
    with layout.server_log.open("rb") as log:
        log.seek(start)
        said = log.read().decode(errors="replace").strip().splitlines()
    at = max((i for i, line in enumerate(said) if line.startswith("error: ")), default=None)
    if code in (Refused.exit_code, UsageError.exit_code) and at is not None:
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
