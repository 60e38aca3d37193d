"""`shoal server install`: run the server of this data directory as a systemd service, which starts it with the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from shoal.cli.shared.output import out
from shoal.core.errors import Refused, UsageError
from shoal.core.names import check_name
from shoal.core.private import write_private
from shoal.core.settings import Layout

SYSTEM_UNITS = Path("/etc/systemd/system")
RUNS_SYSTEMD = Path("/run/systemd/system")
"""Exists if systemd manages this machine."""
_ROOT = 0
_KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "ROCM_PATH",
         "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
         "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SHOAL_LOG_LEVEL")  # fmt: skip
"""Variables of this shell that the service gets too: they say where programs, drivers, the store and the internet are."""
_UNIT = """\
# Written by `shoal server install`; running it again replaces this file. Put changes into a drop-in: systemctl edit {name}
[Unit]
Description=Shoal server of {shown}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
{environment}
ExecStart={command}
Restart=always
RestartSec=2
# Jobs are processes of this service. They survive a restart of the server, and one that needs too much memory ends alone.
KillMode=process
OOMPolicy=continue
TimeoutStopSec=60
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
{hardening}
[Install]
WantedBy={target}
"""
_HARDENING = """\
# Nobody here loads kernel modules, sets the clock or restarts the machine. Options that give the service mounts or devices of
# its own (ProtectSystem, PrivateTmp, ...) are left out: jobs that survive a restart would no longer share them with the server,
# which makes the sandboxes of jobs itself.
CapabilityBoundingSet=~CAP_SYS_MODULE CAP_SYS_BOOT CAP_SYS_TIME CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_MAC_ADMIN CAP_MAC_OVERRIDE
CapabilityBoundingSet=~CAP_AUDIT_CONTROL CAP_SYS_PACCT CAP_SYS_TTY_CONFIG
SystemCallFilter=~@clock @module @reboot @swap @obsolete
SystemCallErrorNumber=EPERM
"""


def install(*, name: str = "shoal", print_only: bool = False, no_start: bool = False) -> None:
    """Run the server as a systemd service, which starts with the machine and again after a crash.

    As root, it becomes a service of the machine; otherwise one of your own,
    which runs while you are not signed in if `loginctl enable-linger` is
    allowed. The settings are those of `shoal server start`, which remembers
    them. A server that runs already is replaced; running jobs continue.

    Without systemd nothing is written, and the command to run is printed.

    For example:

      sudo SHOAL_HOME=/srv/shoal shoal server install
      shoal server install --print-only > shoal.service

    Parameters
    ----------
    name
        Name of the service.
    print_only
        Print the unit file, and change nothing.
    no_start
        Do not start the service now, only when the machine starts.
    """
    from shoal.client import local

    check_name(name, "name of the service")
    local.check_extra()
    layout, is_root = Layout(), os.geteuid() == _ROOT
    text = unit(layout, name, is_root=is_root, environment=dict(os.environ))
    if print_only:
        out.show({"unit": text}, lambda: out.write(text))
        return
    if not RUNS_SYSTEMD.is_dir() or shutil.which("systemctl") is None:
        raise Refused(
            "This machine is not managed by systemd. Have its own supervisor run the server in the foreground.",
            hint=f"SHOAL_HOME={layout.root} {out.prog} server start --foreground",
        )
    path = (SYSTEM_UNITS if is_root else _user_units()) / f"{name}.service"
    _refuse_other(path, layout)
    layout.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, text, durable=True)
    manager = ["systemctl"] if is_root else ["systemctl", "--user"]
    _run([*manager, "daemon-reload"])
    _run([*manager, "enable", path.name])
    if not no_start:
        local.stop_server(layout)
        _run([*manager, "restart", path.name])
    lingers = is_root or _linger()
    facts = {"unit": str(path), "started": not no_start, "starts_with_machine": lingers}
    out.show(facts, lambda: _describe(path, manager, is_started=not no_start))
    if not lingers:
        out.warn("Your services end when you sign out. An admin allows them to stay: loginctl enable-linger $USER")


def unit(layout: Layout, name: str, *, is_root: bool, environment: dict[str, str]) -> str:
    """Return the unit file of the server's service."""
    from shoal.client import local

    kept = {key: environment[key] for key in _KEPT if environment.get(key)}
    variables = {"SHOAL_HOME": str(layout.root), **kept}
    return _UNIT.format(
        name=name,
        shown=str(layout.root).replace("%", "%%"),
        environment="\n".join(f"Environment={quoted(f'{key}={value}')}" for key, value in variables.items()),
        command=" ".join(quoted(part, in_command=True) for part in local.server_command(layout)),
        hardening=_HARDENING if is_root else "",
        target="multi-user.target" if is_root else "default.target",
    )


def quoted(text: str, *, in_command: bool = False) -> str:
    """Return a word of a unit file, in which systemd expands nothing."""
    if "\n" in text or "\r" in text:
        raise UsageError(f"{text!r} cannot be written into a unit file.")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$") if in_command else escaped}"'


def _refuse_other(path: Path, layout: Layout) -> None:
    """Raise if the service of this name runs another data directory."""
    home = f"Environment={quoted(f'SHOAL_HOME={layout.root}')}"
    if path.exists() and home not in path.read_text(encoding="utf-8").splitlines():
        raise Refused(
            f"{path} is not a service of {layout.root}, so it was not replaced.",
            hint=f"{out.prog} server install --name {path.stem}-2",
        )


def _user_units() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user"


def _linger() -> bool:
    return shutil.which("loginctl") is not None and subprocess.run(["loginctl", "enable-linger"], check=False, capture_output=True).returncode == 0  # fmt: skip


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise Refused(
            f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip() or done.returncode}",
            hint=f"journalctl -n 50 -u {command[-1]}",
        )


def _describe(path: Path, manager: list[str], *, is_started: bool) -> None:
    out.info(f"The server is {'running as' if is_started else 'installed as'} the service {path.name} ({path}).")
    out.dim(f"{' '.join(manager)} status {path.name}; addresses and health: {out.prog} server status")
