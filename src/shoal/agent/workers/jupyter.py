"""JupyterLab inside a running job, on a Unix socket that only the job's user can open.

It keeps running when the person who started it disconnects, and ends with the job; a second request gets the one that runs.
The server runs `python -m shoal.agent.workers.jupyter` over the SSH connection that `training attach` uses; it prints one line
of JSON with the socket and token, or with the problem.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TOKEN_FILE = "SHOAL_JUPYTER_TOKEN_FILE"
"""Copy of jupyter_identity.TOKEN_FILE; importing that module needs JupyterLab."""
_LONGEST = 100
"""Most bytes in the path of a Unix socket; the limit of the system is 107."""
_START_S, _POLL_S = 120.0, 0.05
_LAST_LINES = 5
_SETTINGS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}


def main() -> int:
    folder = Path(os.environ["SHOAL_SPOOL"])
    with (folder / "jupyter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when this file closes; JupyterLab does not inherit the descriptor
        print(json.dumps(_running(folder) or _start(folder)), flush=True)
    return 0


def _running(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "jupyter.json").read_text())
    except (OSError, ValueError):
        return None
    return found if _answers(found["socket"]) else None


def _start(folder: Path) -> dict[str, Any]:
    if importlib.util.find_spec("jupyterlab") is None:
        return {
            "problem": "JupyterLab is not installed in this job's environment.",
            "hint": "add a line `jupyterlab` to requirements.txt; where jobs share the machine's Python: pip install 'shoal-train[jupyter]'",
        }
    place = _place(folder)
    token, token_file = secrets.token_urlsafe(32), place / "token"
    token_file.touch(0o600)
    token_file.write_text(token)
    with (folder / "jupyter.log").open("wb") as log:
        process = subprocess.Popen(
            _command(str(place / "sock")),
            env={
                **os.environ,
                TOKEN_FILE: str(token_file),
                "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
                "JUPYTER_CONFIG_PATH": os.pathsep.join([_config(place), *_given("JUPYTER_CONFIG_PATH")]),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found = {"socket": str(place / "sock"), "token": token}
    deadline = time.monotonic() + _START_S
    while not _answers(found["socket"]):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = (folder / "jupyter.log").read_text(errors="replace").strip().splitlines()[-_LAST_LINES:]
            return {"problem": f"JupyterLab did not start: {' | '.join(said) or 'it printed nothing'}", "hint": ""}
        time.sleep(_POLL_S)
    aside = folder / "jupyter.new"
    aside.touch(0o600)
    aside.write_text(json.dumps(found))
    aside.rename(folder / "jupyter.json")
    return found


def _place(folder: Path) -> Path:
    """Create a private folder for the socket; in /tmp if the path below `folder` would be too long."""
    is_short = len(os.fsencode(folder)) <= _LONGEST - len("/jupyter-12345678/sock")
    return Path(tempfile.mkdtemp(prefix="jupyter-", dir=folder if is_short else "/tmp"))  # noqa: S108


def _config(place: Path) -> str:
    """Write a configuration that disables JupyterLab's news prompt; return its folder."""
    labconfig = place / "config" / "labconfig"
    labconfig.mkdir(parents=True)
    (labconfig / "default_setting_overrides.json").write_text(json.dumps(_SETTINGS))
    return str(labconfig.parent)


def _given(name: str) -> list[str]:
    return [os.environ[name]] if os.environ.get(name) else []


def _command(path: str) -> list[str]:
    options = {
        "ServerApp.sock": path,
        "ServerApp.sock_mode": "0600",
        "ServerApp.root_dir": str(Path.cwd()),
        "ServerApp.identity_provider_class": "shoal.agent.workers.jupyter_identity.Identity",
        "ServerApp.open_browser": False,
        "ServerApp.allow_root": True,
        "ServerApp.quit_button": False,
        "LabApp.news_url": None,
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    return [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())]


def _answers(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(path)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
