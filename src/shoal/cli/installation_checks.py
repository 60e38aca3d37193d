"""Checks of `shoal doctor`: this installation, its server and the network between, this machine's devices and sandbox.

Each returns findings with what solves them. Nothing is started, and nothing is changed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

from shoal import __version__
from shoal.cli.shared.format import size
from shoal.cli.shared.output import out
from shoal.cli.shared.session import session
from shoal.client import Client
from shoal.client.config import find_target, is_loopback, origins
from shoal.client.local import SERVER_MODULES, local_key, own_record, running_server
from shoal.core.backups import Finding, FindingState
from shoal.core.errors import ShoalError
from shoal.core.install import install_command
from shoal.core.settings import Layout

_LEAST_FREE, _VERY_LEAST_FREE = 2 << 30, 200 << 20
_SLOW_S, _CLOCK_S = 1.0, 30.0
_SET_CLOCK = "Let the system set its clock: timedatectl set-ntp true"


def examine(layout: Layout, *, only_client: bool = False) -> list[Finding]:
    """Return all findings, in the order in which to deal with them. A check that fails is a finding, too."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "installation": _installation,
        "home": lambda: _home(layout),
        "server": lambda: _server(layout),
    }
    if not only_client:
        checks |= {"devices": _devices, "sandbox": lambda: _sandbox(layout), "data": lambda: _data(layout)}
    found: list[Finding] = []
    for name, check in checks.items():
        try:
            found += check()
        except ShoalError as error:
            found.append(_finding(name, "error", error.message, error.hint or ""))
        except Exception as error:
            found.append(_finding(name, "error", f"this check failed: {type(error).__name__}: {error}"))
    return found


def _finding(name: str, state: FindingState, text: str, fix: str = "") -> Finding:
    return Finding(name=name, state=state, text=text, fix=fix)


def _installation() -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield _finding("installation", "ok", f"Shoal {__version__}, Python {python}, {sys.platform}, in {sys.prefix}")
    typed = shutil.which(out.prog)
    if typed is None:
        fix = f"export PATH={Path(sys.prefix, 'bin')}:$PATH"
        yield _finding("command", "warning", f"there is no '{out.prog}' on PATH", fix)
    elif Path(typed).resolve().parent != Path(sys.prefix, "bin").resolve() and _runs_elsewhere(typed):
        fix = "Activate the environment that you mean, or uninstall the other one."
        yield _finding("command", "warning", f"'{out.prog}' on PATH is {typed}, of another environment", fix)
    torch = _version("torch")
    if torch is None:
        yield _finding("torch", "ok", "not installed: jobs bring their own; to train here: " + install_command("train"))
    else:
        yield _finding("torch", "ok", torch)


def _runs_elsewhere(command: str) -> bool:
    """Return whether a console script belongs to another Python than this one."""
    try:
        first = Path(command).read_bytes()[:300].partition(b"\n")[0].decode(errors="replace")
    except OSError:
        return False
    return first.startswith("#!") and Path(first[2:].split()[0]).parent != Path(sys.executable).parent


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _home(layout: Layout) -> Iterator[Finding]:
    place = next(path for path in (layout.root, *layout.root.parents) if path.exists())
    where = f"{layout.root}{' (SHOAL_HOME)' if os.environ.get('SHOAL_HOME') else ''}"
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        yield _finding(
            "home", "error", f"{where} cannot be written: {error.strerror}", "Set SHOAL_HOME to another folder."
        )
        return
    free = shutil.disk_usage(place).free
    if free >= _LEAST_FREE:
        yield _finding("home", "ok", f"{where}, {size(free)} free")
        return
    fix = f"{out.prog} store gc; delete jobs and checkpoints; or set SHOAL_HOME to a folder on a larger disk"
    yield _finding(
        "home", "error" if free < _VERY_LEAST_FREE else "warning", f"{where} has only {size(free)} free", fix
    )


def _server(layout: Layout) -> Iterator[Finding]:
    target = find_target(layout, url=session.url)
    address_from, key_from = origins(layout, url=session.url)
    record = None if target.url else running_server(layout)
    url = target.url or (record.url if record else None)
    if url is None:
        yield _no_server()
        return
    from_where = f" (from {address_from})" if address_from else " (this machine's own)"
    yield _proxy(url)
    begin = time.time()
    with Client(url, target.key or local_key(layout, url), target.workspace) as client:
        try:
            health = client.health()
        except ShoalError as error:
            yield _finding(
                "server", "error", f"{url}{from_where}: {error.message}", error.hint or f"{out.prog} server log"
            )
            return
        took = time.time() - begin
        yield from _health(url + from_where, health, took)
        yield from _clock(health, begin, took)
        yield _sign_in(client, key_from)


def _no_server() -> Finding:
    missing = [name for name in SERVER_MODULES if util.find_spec(name) is None]
    if missing:
        fix = f"{install_command('server')}; or use another server: {out.prog} login --url URL"
        return _finding("server", "warning", "none is configured, and this installation cannot run one", fix)
    return _finding("server", "ok", f"none is running; a private one starts at the first job, or with {out.prog} up")


def _proxy(url: str) -> Finding:
    scheme, host = url.partition(":")[0], url.split("/")[2].rpartition("@")[2]
    proxy = getproxies().get(scheme) or getproxies().get("all")
    if proxy is None or proxy_bypass(host) or is_loopback(url):  # the client uses none for this machine's own loopback
        return _finding("network", "ok", "no proxy is used")
    return _finding("network", "ok", f"through the proxy {proxy} ({scheme}_proxy)")


def _health(server: str, health: dict[str, Any], took: float) -> Iterator[Finding]:
    text = f"{server} answers in {1000 * took:.0f} ms"
    if took > _SLOW_S:
        yield _finding("server", "warning", text, f"{out.prog} server status, on its machine: it may be overloaded")
    else:
        yield _finding("server", "ok", text)
    for problem in health.get("problems") or []:
        why = f": {problem['error']}" if problem.get("error") else ""
        text = f"{problem['name']} is {problem['state']} for {problem['since_s']:.0f} s{why}"
        yield _finding("server", "error", text, f"{out.prog} server doctor, on its machine")
    running = str(health.get("version"))
    if running == __version__:
        yield _finding("versions", "ok", f"client and server are {running}")
    else:
        url = server.partition(" ")[0]
        fix = f"To get the server's version: {install_command(server=url)}"
        yield _finding("versions", "warning", f"the server is {running}, this client {__version__}", fix)


def _clock(health: dict[str, Any], begin: float, took: float) -> Iterator[Finding]:
    now = (health.get("clock") or {}).get("now")
    if now is None:  # a server of an earlier version
        return
    ahead = begin + took / 2 - float(now)
    if abs(ahead) > _CLOCK_S + took:
        words = f"this machine's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
        yield _finding("clock", "warning", words, _SET_CLOCK)
    else:
        yield _finding("clock", "ok", "agrees with the server's")


def _sign_in(client: Client, key_from: str | None) -> Finding:
    try:
        user = client.auth.me()
    except ShoalError as error:
        origin = f" The key is from {key_from}." if key_from else ""
        return _finding(
            "sign-in", "error", error.message + origin, error.hint or f"{out.prog} login --url {client.url}"
        )
    return _finding("sign-in", "ok", f"{user.email}, workspace '{client.workspace}'")


def _devices() -> Iterator[Finding]:
    try:
        from shoal.agent.devices import inventory
    except ModuleNotFoundError as error:
        yield _only_linux("devices", error)
        return
    found = inventory.scan()
    names = [device.model or device.kind for device in found.offered]
    counted = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
    if not found.problems:
        yield _finding("devices", "ok", counted or "no GPU: the slots of this machine are CPUs")
    for problem in found.problems:
        yield _finding("devices", "error", problem, f"{out.prog} doctor gpu")


def _sandbox(layout: Layout) -> Iterator[Finding]:
    try:
        from shoal.agent.sandbox.mounts import Mode, choose, find
    except ModuleNotFoundError as error:
        yield _only_linux("sandbox", error)
        return
    mode = choose(layout.cache_dir)
    if mode is not Mode.REWRITE:
        yield _finding("sandbox", "ok", f"{mode.value}: jobs see /input and /output-checkpoint")
        return
    why, fix = "bubblewrap is not installed", "apt install bubblewrap"
    if find("bwrap") is not None:
        why, fix = (
            "bubblewrap does not work here",
            "Allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1",
        )
    yield _finding(
        "sandbox", "warning", f"{why}: scripts that run here must take paths from DATA_LOCATION and OUTPUT_DIR", fix
    )


def _only_linux(name: str, error: ModuleNotFoundError) -> Finding:
    return _finding(name, "ok", f"not examined: servers and agents need Linux (no '{error.name}' here)")


def _data(layout: Layout) -> Iterator[Finding]:
    """Yield the findings of `shoal server doctor`, if this machine has the data of a server and can examine it."""
    if not layout.database.exists() or any(util.find_spec(name) is None for name in SERVER_MODULES):
        return
    from shoal.client.local import health_of
    from shoal.server.doctor import examine as examine_data

    record = own_record(layout)
    health = (health_of(record.url) if record else None) or {}
    for one in examine_data(layout, health):
        if one.name not in ("server", "loops", "versions"):
            yield one.model_copy(update={"name": f"data: {one.name}"})
