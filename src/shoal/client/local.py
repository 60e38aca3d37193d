"""The private local server: find it, start it when needed (exactly once, however many ask), stop it.

A server writes `Layout.server_file` when it is ready and removes it when it stops in good order.
"""

from __future__ import annotations

import fcntl
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shoal.core.boot import boot_id
from shoal.core.errors import AuthError, Internal, MissingExtra, NotSignedIn, Refused, TimedOut, Unreachable
from shoal.core.private import write_private
from shoal.core.settings import Layout

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
CLOCK_SLACK_S = 2.0
"""How far apart two readings of one process's start time may be."""
SERVER_MODULES = ("fastapi", "uvicorn", "sqlalchemy", "alembic", "argon2", "cryptography", "jinja2")
_OURS_ALONE = ("SHOAL_URL", "SHOAL_API_KEY", "SHOAL_WORKSPACE")


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The content of the server file."""

    pid: int
    url: str
    boot_id: str
    create_time: float
    private: bool = True
    """Whether its owner's key file opens it; one that listens to the network has accounts instead."""


@dataclass(frozen=True, slots=True)
class Started:
    record: ServerRecord
    is_new: bool
    """False when it was running already."""


def ensure_local_server(layout: Layout, *, say: Callable[[str], None] | None = None) -> tuple[str, str]:
    """The private server's URL and its owner's key; starts it if it is not running."""
    record = running_server(layout)
    if record is None:
        if os.environ.get("SHOAL_NO_AUTOSTART", "") not in ("", "0"):
            raise Unreachable(
                "No server is running, and SHOAL_NO_AUTOSTART forbids starting one.",
                hint="Start it: shoal server start",
            )
        started = start_server(layout)
        record = started.record
        if started.is_new:
            word = "private " if record.private else ""
            (say or _to_stderr)(f"Started a {word}Shoal server at {record.url} (stop it with `shoal server stop`)")
    return record.url, owner_key(layout, record)


def running_server(layout: Layout) -> ServerRecord | None:
    """The server of this data directory, if it lives and answers."""
    record = read_record(layout)
    health = health_of(record.url) if record and is_alive(record) else None
    return replace(record, private=bool(health.get("private", True))) if record and health else None


def start_server(
    layout: Layout,
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> Started:
    """Start the server in the background, unless one runs. Of several that ask at once, one starts it and all get it."""
    layout.server_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _starting(layout, timeout_s):
        if record := running_server(layout):
            return Started(record, is_new=False)
        if command is None:
            check_extra()
        return Started(
            _launch(layout, list(command or server_command(layout)) + list(arguments), timeout_s), is_new=True
        )


def stop_server(layout: Layout, *, timeout_s: float = STOP_TIMEOUT_S) -> ServerRecord | None:
    """Ask the server to stop and wait until it is gone; None when none was running."""
    record = read_record(layout)
    if record is None or not is_alive(record):
        return None
    os.kill(record.pid, signal.SIGTERM)
    if not _wait_until(lambda: not is_alive(record), timeout_s):
        raise TimedOut(f"The server (pid {record.pid}) has not stopped yet.", hint="Look at its log: shoal server log")
    return record


def read_record(layout: Layout) -> ServerRecord | None:
    try:
        found = json.loads(layout.server_file.read_text())
        return ServerRecord(
            int(found["pid"]), str(found["url"]), str(found.get("boot_id", "")), float(found["create_time"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_alive(record: ServerRecord) -> bool:
    """Whether that very process lives: pids are reused, and after a reboot they all are."""
    if record.boot_id and record.boot_id != boot_id():
        return False
    started = _process_start(record.pid)
    if started is None:
        return False
    # Setting the clock moves a start time, so the command line decides when the times differ.
    return abs(started - record.create_time) <= CLOCK_SLACK_S or _is_own_server(record.pid)


def health_of(url: str, *, timeout_s: float = 5.0) -> dict[str, Any] | None:
    """What the Shoal server there says of itself, if there is one. Plain http.client: this runs before every command."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", "/api/v1/health")
        response = connection.getresponse()
        found = json.loads(response.read()) if response.status == 200 else None
        return found if isinstance(found, dict) and found.get("status") == "ok" else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def owner_key(layout: Layout, record: ServerRecord) -> str:
    """The owner's key; refused when anyone else could have read it."""
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
    """The owner's key, if the URL is that of this data directory's private server."""
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


def _launch(layout: Layout, command: list[str], timeout_s: float) -> ServerRecord:
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

    def is_up() -> bool:
        return process.poll() is not None or running_server(layout) is not None

    _wait_until(is_up, timeout_s)
    record = running_server(layout)
    if record is not None:
        return record
    if process.poll() is None:
        process.terminate()
        raise TimedOut(
            f"The server did not come up within {timeout_s:.0f} seconds.{_tail(layout, log_start)}",
            hint=f"Its log: {layout.server_log}",
        )
    raise Internal(
        f"The server ended while starting (exit code {process.returncode}).{_tail(layout, log_start)}",
        hint=f"Its log: {layout.server_log}",
    )


@contextmanager
def _starting(layout: Layout, timeout_s: float) -> Iterator[None]:
    """One starter at a time. The lock falls with its holder, so a killed starter leaves nothing to clean up."""
    with (layout.server_dir / "start.lock").open("a") as lock:

        def is_ours() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        # The other starter may use up its own time first.
        if not _wait_until(is_ours, timeout_s + 5):
            raise Refused(f"Another command has been starting the server for {timeout_s:.0f} seconds. Try again.")
        yield


def _process_start(pid: int) -> float | None:
    """When a live process started, in Unix seconds as psutil counts them; None if there is none, or a zombie.

    Read by hand because importing psutil costs more than the rest of this check.
    """
    try:
        # The command name is in parentheses and may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    except (OSError, StopIteration):
        return None
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") + float(boot.split()[1])


def _is_own_server(pid: int) -> bool:
    try:
        process = Path(f"/proc/{pid}")
        return process.stat().st_uid == os.getuid() and b"shoal.server" in (process / "cmdline").read_bytes().split(
            b"\0"
        )
    except OSError:
        return False


def _tail(layout: Layout, start: int, lines: int = 12) -> str:
    with layout.server_log.open("rb") as log:
        log.seek(start)
        text = log.read().decode(errors="replace").strip()
    return "\n" + "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) if text else ""


def _wait_until(is_true: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)
