"""`shoal server`, `up` and `down`: the server on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from shoal.cli.server import backup, oidc
from shoal.cli.server.install import install
from shoal.cli.server.share import share
from shoal.cli.shared.output import out
from shoal.core.errors import NotFound, Unreachable, UsageError
from shoal.core.settings import Layout

if TYPE_CHECKING:
    from shoal.client.local import ServerRecord, Started

app = App(name="server")
app.command(backup.app)
app.command(oidc.app)
for command in (backup.restore, backup.check, backup.doctor, backup.upgrade, backup.downgrade):
    app.command(command)
app.command(share)
app.command(install)
Slots = int | Literal["auto"]


@app.command
def start(
    *,
    host: str | None = None,
    port: int | None = None,
    slots: Slots | None = None,
    store: str | None = None,
    job_sandbox: Literal["S0", "S1", "S2", "S3"] | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    behind_proxy: str | None = None,
    allow_clear_text: bool = False,
    foreground: bool = False,
    take_over: bool = False,
    new_secret_key: bool = False,
) -> None:
    """Start the server of this data directory in the background.

    Settings given here are remembered for the next start. The command waits
    for a slow start (a migration, a slow disk) and never cancels it.

    A copy of a data directory becomes a separate instance: running jobs and
    pool machines stay with the original. If you moved the directory to
    another disk or host and the original is gone, use --take-over.

    For example:

      shoal server start
      shoal server start --slots 4
      shoal server start --host 0.0.0.0 --port 8443 --tls-cert auto
      shoal server start --host 0.0.0.0 --port 443 --tls-cert cert.pem --tls-key key.pem
      shoal server start --host 10.0.0.5 --port 8080 --behind-proxy 10.0.0.2
      shoal server start --new-secret-key

    Parameters
    ----------
    host
        Address to listen on (default 127.0.0.1: this machine only).
    port
        Port to listen on (default: a free port, remembered for later starts).
    slots
        Slots of this machine, one worker each; 0 for none, auto (default) for one per GPU, or half its cores.
    store
        Store chunks at this s3:// URL instead of the data directory (keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY).
    job_sandbox
        Weakest sandbox of jobs (default: S3 on a shared server, S1 on a private one if the machine allows it).
        S0: no sandbox, on a private server only.
    tls_cert
        Speak https with this certificate chain (PEM file); auto: one signed by a private CA that the server makes.
    tls_key
        Private key (PEM file) of the certificate.
    behind_proxy
        Address of the reverse proxy in front of the server; only its X-Forwarded headers are believed.
    allow_clear_text
        Listen beyond this machine without encryption. Others on the network can then read passwords and keys.
    foreground
        Run in the foreground and log to this terminal, for systemd or a container.
    take_over
        Replace the original of this copied or moved data directory; the original must never run again.
    new_secret_key
        Replace a lost secret.key. Values that were encrypted with it can no longer be read.
    """
    from shoal.client import local

    layout = Layout()
    once = [*(["--take-over"] if take_over else []), *(["--new-secret-key"] if new_secret_key else [])]
    edge = {"--job-sandbox": job_sandbox, "--tls-cert": server_path(tls_cert), "--tls-key": server_path(tls_key)}
    once += options(edge | {"--behind-proxy": behind_proxy})
    once += ["--allow-clear-text"] if allow_clear_text else []
    arguments = [*_arguments(host, port, slots, store), *once]
    if foreground:
        local.check_extra()
        command = [*local.server_command(layout), *arguments]
        sys.stdout.flush()
        os.execve(command[0], command, local.server_environment(layout))  # noqa: S606
    started = _start(layout, host, port, slots, store, once)
    word = "Started the server" if started.is_new else "The server is already running"
    out.show(_facts(layout), lambda: out.info(f"{word} at {started.record.public_url} (pid {started.record.pid})."))


@app.command
def status() -> int:
    """Show the state, address and health of the server of this data directory.

    Exits 0 if the server runs and answers, 6 if not. "degraded" names the
    part that has a problem: a background loop, the database, the disk or
    the store. If this directory is a copy, the original's server is not shown.

    For example:

      shoal server status
      shoal server status --json
    """
    facts = _facts(Layout())
    pairs = [
        ("Server", _state_in_words(facts)),
        ("URL", facts["public_url"]),
        *([("CA", facts["ca_fingerprint"])] if facts["ca_fingerprint"] else []),
        ("Pid", facts["pid"]),
        ("Version", facts["version"]),
        *([("Health", describe_health(facts))] if facts["running"] else []),
        *(
            [("Parts", ", ".join(f"{name} {state}" for name, state in facts["parts"].items()))]
            if facts["parts"]
            else []
        ),
        ("Data", facts["home"]),
        ("Instance", facts["instance"]),
        ("Log", facts["log"]),
        *([("Setup code", facts["setup_code"])] if facts["setup_code"] else []),
    ]
    out.show(facts, lambda: out.fields(pairs))
    return 0 if facts["running"] else Unreachable.exit_code


def describe_health(facts: dict[str, Any]) -> str:
    """Return "ok", or "degraded" with the problems; "unknown" for a server of an earlier version."""
    parts = []
    for problem in facts["problems"]:
        why = problem.get("error") or f"see {out.prog} server log"
        parts.append(f"{problem['name']} is {problem['state']} ({why})")
    return f"degraded: {'; '.join(parts)}" if parts else facts["health"] or "unknown"


@app.command
def stop() -> None:
    """Stop the server. Running jobs continue; the next start reconnects to them.

    For example:

      shoal server stop
    """
    from shoal.client.local import stop_server

    record = stop_server(Layout())
    if record is None:
        out.show({"stopped": False}, lambda: out.info("The server was not running."))
        return

    def show() -> None:
        out.info(f"Stopped the server at {record.url}." if record.url else "Stopped the server while it was starting.")
        out.info(f"Running jobs continue; the next `{out.prog} server start` reconnects to them.")

    out.show({"stopped": True, "url": record.url, "pid": record.pid}, show)


@app.command
def log(*, lines: int = 100) -> None:
    """Show the end of the server's log.

    For example:

      shoal server log
      shoal server log --lines 1000

    Parameters
    ----------
    lines
        Number of lines to show (default 100).
    """
    from collections import deque

    path = Layout().server_log
    if not path.exists():
        raise NotFound(f"There is no log at {path} yet.", hint=f"Start the server: {out.prog} server start")
    with path.open(errors="replace") as file:
        last = list(deque(file, maxlen=max(0, lines)))
    out.show({"path": str(path), "lines": [line.rstrip("\n") for line in last]}, lambda: out.write("".join(last)))


def up(*, slots: Slots | None = None, host: str | None = None, port: int | None = None) -> None:
    """Start the server in the background, and print its URL and how to use it.

    If it already runs, this only prints the URL; with a different number of
    --slots, the server is restarted. Running jobs continue meanwhile.

    For example:

      shoal up
      shoal up --slots 4
      shoal up --slots 0
      shoal up --slots auto

    Parameters
    ----------
    slots
        Slots of this machine, one worker each; 0 for none, auto (default) for one per GPU, or half its cores.
    host
        Address to listen on (default 127.0.0.1: this machine only).
    port
        Port to listen on (default: a free port, remembered for later starts).
    """
    layout = Layout()
    started = _start(layout, host, port, slots)
    facts = _facts(layout)

    def show() -> None:
        out.line(started.record.public_url)
        out.info(f"The server is {'up' if started.is_new else 'already up'}.")
        if not started.record.private:
            out.info("It is open to the network and needs accounts. The first account becomes its admin:")
            code = f" --setup-code {facts['setup_code']}" if facts["setup_code"] else ""
            ca = f" --fingerprint {facts['ca_fingerprint']}" if facts["ca_fingerprint"] else ""
            out.info(f"  {out.prog} signup --url {started.record.public_url}{ca}{code}")
        else:
            out.info("Commands on this machine find it automatically. For other programs:")
            out.info(f"  export SHOAL_URL={started.record.url}")
            out.info(f"  export SHOAL_API_KEY=$(cat {layout.owner_key})")
        out.info(f"Stop it with: {out.prog} down")

    out.show(facts, show)


def down() -> None:
    """Stop the server, as `server stop` does. Running jobs continue.

    For example:

      shoal down
    """
    stop()


def _arguments(host: str | None, port: int | None, slots: Slots | None, store: str | None = None) -> list[str]:
    if isinstance(slots, int) and slots < 0:
        raise UsageError(f"--slots {slots}: use 0 or more, or auto.", hint=f"{out.prog} up --slots 4")
    return options({"--host": host, "--port": port, "--slots": slots, "--store": store})


def options(given: Mapping[str, object]) -> list[str]:
    """Return the arguments of the server for the options that have a value."""
    return [part for name, value in given.items() if value is not None for part in (name, str(value))]


def server_path(file: str | None) -> str | None:
    """Return an absolute path: the server has another working directory."""
    return file if file in (None, "auto") else os.path.abspath(os.path.expanduser(file))  # noqa: PTH100, PTH111


def _start(
    layout: Layout,
    host: str | None,
    port: int | None,
    slots: Slots | None,
    store: str | None = None,
    once: Sequence[str] = (),
) -> Started:
    """Start the server, or restart a private one that runs with a different number of slots: running jobs continue."""
    from shoal.client import local
    from shoal.core.settings import ServerSettings

    started = local.start_server(layout, [*_arguments(host, port, slots, store), *once], say=out.info)
    if started.is_new:
        return started
    has = ServerSettings.load(layout).slots
    same = slots is None or (None if slots == "auto" else slots) == has
    if started.record.private and not same:
        runs = "the default number of" if has is None else has
        out.info(f"The server runs with {runs} slots; restarting it with {slots}.")
        out.dim("Running jobs continue meanwhile.")
        local.stop_server(layout)
        return local.start_server(layout, [*_arguments(host, port, slots, store), *once], say=out.info)
    if ignored := [*_arguments(host, port, None if same else slots, store), *once]:
        out.warn(
            f"The server was already running, so {' '.join(ignored)} had no effect. "
            f"To change settings: {out.prog} server stop, then start it with them."
        )
    return started


def _state_in_words(facts: dict[str, Any]) -> str:
    if facts["running"]:
        return "running"
    words = {"starting": f"starting: {facts['doing']}", "busy": "running, but not answering at the moment"}
    return words.get(facts["state"], "not running")


def _ca_fingerprint(record: ServerRecord) -> str | None:
    """Return the fingerprint of the private CA of a server on this machine; None if it has none."""
    from shoal.client.server_record import private_ca
    from shoal.core.tls import fingerprint

    pem = private_ca(record.url) if record.public_url.startswith("https://") else None
    return fingerprint(pem) if pem else None


def _facts(layout: Layout) -> dict[str, Any]:
    from shoal.client.local import health_of, own_record, running_server, starting_record
    from shoal.core.instance import instance_id

    facts: dict[str, Any] = {"running": False, "state": "stopped", "url": None, "pid": None, "version": None}
    facts |= {
        "public_url": None,
        "ca_fingerprint": None,
        "private": None,
        "doing": None,
        "instance": instance_id(layout),
        "health": None,
        "parts": {},
        "problems": [],
    }
    if record := running_server(layout):
        told = health_of(record.url) or {}
        facts.update(running=True, state="running", url=record.url, pid=record.pid, version=told.get("version"))
        facts.update(public_url=record.public_url, ca_fingerprint=_ca_fingerprint(record))
        facts.update(private=record.private, health=told.get("health"), problems=told.get("problems") or [])
        facts.update(parts=told.get("parts") or {})
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
