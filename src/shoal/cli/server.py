"""`shoal server`, `up` and `down`: the server on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from shoal.cli._output import out
from shoal.core.errors import NotFound, Unreachable, UsageError
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client.local import Started

app = App(name="server")
Slots = int | Literal["auto"]


@app.command
def start(
    *,
    host: str | None = None,
    port: int | None = None,
    slots: Slots | None = None,
    store: str | None = None,
    foreground: bool = False,
    take_over: bool = False,
    new_secret_key: bool = False,
) -> None:
    """Start the server of this data directory in the background.

    Settings given here are remembered for the next start. A start that
    takes long (a migration, a slow disk) is waited for and never ended.

    A copy of a data directory becomes an instance of its own: it leaves
    running jobs and pool machines to the original. After a move to another
    disk or host, with the original gone, --take-over keeps them.

    For example:

      shoal server start
      shoal server start --slots 4
      shoal server start --host 0.0.0.0 --port 8080 --foreground
      shoal server start --new-secret-key

    Parameters
    ----------
    host
        Address to listen on (default 127.0.0.1: this machine only).
    port
        Port to listen on (default: a free one, kept from then on).
    slots
        Jobs' workers this machine takes at once; 0: none; auto (the default): its GPUs, or half its cores.
    store
        Keep chunks at this s3:// URL instead of the data directory (keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY).
    foreground
        Stay in the foreground and log here, for systemd or a container.
    take_over
        This copy of a data directory replaces the original, which must not run any more.
    new_secret_key
        Replace a lost secret.key. What was encrypted with it cannot be read again.
    """
    from shoal.client import local

    layout = Layout()
    once = [*(["--take-over"] if take_over else []), *(["--new-secret-key"] if new_secret_key else [])]
    arguments = [*_arguments(host, port, slots, store), *once]
    if foreground:
        local.check_extra()
        command = [*local.server_command(layout), *arguments]
        sys.stdout.flush()
        os.execve(command[0], command, local.server_environment(layout))  # noqa: S606
    started = _start(layout, host, port, slots, store, once)
    word = "Started the server" if started.is_new else "The server is already running"
    out.show(_facts(layout), lambda: out.say(f"{word} at {started.record.url} (pid {started.record.pid})."))


@app.command
def status() -> int:
    """Show whether the server of this data directory runs, where, and whether all of it works.

    Exits 0 if it runs and answers, 6 if not. "degraded" names the part
    that is not well: a background loop, the database or the disk. The
    server of the directory this one was copied from is not this one's.

    For example:

      shoal server status
      shoal server status --json
    """
    facts = _facts(Layout())
    pairs = [
        ("Server", _state_in_words(facts)),
        ("URL", facts["url"]),
        ("Pid", facts["pid"]),
        ("Version", facts["version"]),
        *([("Health", describe_health(facts))] if facts["running"] else []),
        ("Data", facts["home"]),
        ("Instance", facts["instance"]),
        ("Log", facts["log"]),
        *([("Setup code", facts["setup_code"])] if facts["setup_code"] else []),
    ]
    out.show(facts, lambda: out.fields(pairs))
    return 0 if facts["running"] else Unreachable.exit_code


def describe_health(facts: dict[str, Any]) -> str:
    """Return "ok", or what is not well; "unknown" for a server of an earlier version."""
    parts = []
    for problem in facts["problems"]:
        why = problem.get("error") or f"see {out.prog} server log"
        parts.append(f"{problem['name']} is {problem['state']} ({why})")
    return f"degraded: {'; '.join(parts)}" if parts else facts["health"] or "unknown"


@app.command
def stop() -> None:
    """Stop the server. Running jobs go on; the next start picks them up again.

    For example:

      shoal server stop
    """
    from shoal.client.local import stop_server

    record = stop_server(Layout())
    if record is None:
        out.show({"stopped": False}, lambda: out.say("The server was not running."))
        return

    def tell() -> None:
        out.say(f"Stopped the server at {record.url}." if record.url else "Stopped the server while it was starting.")
        out.say(f"Jobs that were running go on without it and are picked up by the next `{out.prog} server start`.")

    out.show({"stopped": True, "url": record.url, "pid": record.pid}, tell)


@app.command
def log(*, lines: int = 100) -> None:
    """Show the end of the server's log.

    For example:

      shoal server log
      shoal server log --lines 1000

    Parameters
    ----------
    lines
        How many lines to show (default 100).
    """
    from collections import deque

    path = Layout().server_log
    if not path.exists():
        raise NotFound(f"There is no log at {path} yet.", hint=f"Start the server: {out.prog} server start")
    with path.open(errors="replace") as file:
        last = list(deque(file, maxlen=max(0, lines)))
    out.show({"path": str(path), "lines": [line.rstrip("\n") for line in last]}, lambda: out.write("".join(last)))


def up(*, slots: Slots | None = None, host: str | None = None, port: int | None = None) -> None:
    """Start the server in the background, and say where it is and how to reach it.

    If it runs already, this only tells where; with another number of --slots
    it is started anew, and running jobs go on meanwhile.

    For example:

      shoal up
      shoal up --slots 4
      shoal up --slots 0
      shoal up --slots auto

    Parameters
    ----------
    slots
        Jobs' workers this machine takes at once; 0: none; auto (the default): its GPUs, or half its cores.
    host
        Address to listen on (default 127.0.0.1: this machine only).
    port
        Port to listen on (default: a free one, kept from then on).
    """
    layout = Layout()
    started = _start(layout, host, port, slots)
    facts = _facts(layout)

    def tell() -> None:
        out.line(started.record.url)
        out.say(f"The server is {'up' if started.is_new else 'already up'}.")
        if not started.record.private:
            out.say("It is open to the network, so it has accounts. The first one is its admin:")
            code = f" --setup-code {facts['setup_code']}" if facts["setup_code"] else ""
            out.say(f"  {out.prog} signup --url {started.record.url}{code}")
        else:
            out.say("Commands on this machine find it by themselves. For other programs:")
            out.say(f"  export SHOAL_URL={started.record.url}")
            out.say(f"  export SHOAL_API_KEY=$(cat {layout.owner_key})")
        out.say(f"Stop it with: {out.prog} down")

    out.show(facts, tell)


def down() -> None:
    """Stop the server, as `server stop` does. Running jobs go on.

    For example:

      shoal down
    """
    stop()


def _arguments(host: str | None, port: int | None, slots: Slots | None, store: str | None = None) -> list[str]:
    if isinstance(slots, int) and slots < 0:
        raise UsageError(f"--slots {slots}: give a number from 0, or auto.", hint=f"{out.prog} up --slots 4")
    given = {"--host": host, "--port": port, "--slots": slots, "--store": store}
    return [part for name, value in given.items() if value is not None for part in (name, str(value))]


def _start(
    layout: Layout,
    host: str | None,
    port: int | None,
    slots: Slots | None,
    store: str | None = None,
    once: Sequence[str] = (),
) -> Started:
    """Start it, or start it anew if a private one runs with another number of slots: jobs outlive that."""
    from shoal.client import local
    from shoal.core.settings import ServerSettings

    started = local.start_server(layout, [*_arguments(host, port, slots, store), *once], say=out.say)
    if started.is_new:
        return started
    has = ServerSettings.load(layout).slots
    same = slots is None or (None if slots == "auto" else slots) == has
    if started.record.private and not same:
        runs = "the default number of" if has is None else has
        out.say(f"The server runs with {runs} slots; restarting it with {slots}.")
        out.dim("Running jobs go on meanwhile.")
        local.stop_server(layout)
        return local.start_server(layout, [*_arguments(host, port, slots, store), *once], say=out.say)
    if ignored := [*_arguments(host, port, None if same else slots, store), *once]:
        out.warn(
            f"The server was running already, so {' '.join(ignored)} changed nothing. "
            f"For new settings: {out.prog} server stop, then start it with them."
        )
    return started


def _state_in_words(facts: dict[str, Any]) -> str:
    if facts["running"]:
        return "running"
    words = {"starting": f"starting: {facts['doing']}", "busy": "running, but busy: it does not answer now"}
    return words.get(facts["state"], "not running")


def _facts(layout: Layout) -> dict[str, Any]:
    from shoal.client.local import health_of, own_record, running_server, starting_record
    from shoal.core.instance import instance_id

    facts: dict[str, Any] = {"running": False, "state": "stopped", "url": None, "pid": None, "version": None}
    facts |= {"private": None, "doing": None, "instance": instance_id(layout), "health": None, "problems": []}
    if record := running_server(layout):
        told = health_of(record.url) or {}
        facts.update(running=True, state="running", url=record.url, pid=record.pid, version=told.get("version"))
        facts.update(private=record.private, health=told.get("health"), problems=told.get("problems") or [])
    elif record := own_record(layout):
        facts.update(state="busy", url=record.url, pid=record.pid)
    elif record := starting_record(layout):
        facts.update(state="starting", pid=record.pid, doing=record.doing)
    code = layout.setup_code.read_text().strip() if layout.setup_code.exists() else None
    return {
        **facts,
        "home": str(layout.root),
        "log": str(layout.server_log),
        "owner_key": str(layout.owner_key),
        "setup_code": code,
    }
