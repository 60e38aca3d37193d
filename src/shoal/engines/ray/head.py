"""The head of the Ray cluster, on the server's machine. It outlives the server, is found again by it, and runs the Ray driver.

Its directory has its whole state: the token (0600), the ports, the identity of its daemon, and the driver's address.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import secrets
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from shoal.core.errors import MissingExtra, Refused, TimedOut, Unreachable
from shoal.core.ports import free_port
from shoal.core.private import write_private
from shoal.core.settings import Layout
from shoal.engines.identity import holder
from shoal.engines.ray import daemon, driver
from shoal.engines.ray.daemon import SIGNATURE, TOKEN, UP, folder_in

logger = logging.getLogger(__name__)

_UP_S = 90.0
_CALL_S = 10.0
_JOB = "shoal-gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInfo:
    """Addresses and token of the cluster's head."""

    address: str
    """Private address at which machines reach the head."""
    port: int
    dashboard_port: int
    """Loopback port of Ray's Jobs REST API."""
    token_file: Path

    @property
    def gcs_address(self) -> str:
        """The address that machines join at."""
        return f"{self.address}:{self.port}"


class Head:
    """Starts and finds the cluster's head, and submits the Ray driver to it."""

    def __init__(self, layout: Layout, *, python: str = sys.executable):
        self._home, self._python = layout.server_dir, python
        self.folder = folder_in(self._home)
        self.token_file = self.folder / TOKEN

    def info(self) -> HeadInfo | None:
        """Return the head that was last started here, whether or not it runs now; None if there was none."""
        try:
            known = json.loads((self.folder / "head.json").read_text())
            return HeadInfo(**known, token_file=self.token_file)
        except (OSError, ValueError, TypeError):
            return None

    @property
    def runs(self) -> bool:
        return holder(self.folder / SIGNATURE) is not None

    def ensure(self, address: str | None = None) -> HeadInfo:
        """Start the head unless it runs; return once machines can join.

        `address` is the private address of the head; None means the one it had before.
        """
        known = self.info()
        if known is not None and self.runs:
            if address not in (None, known.address):
                raise Refused(
                    f"The head of the cluster uses the address {known.address}, but these machines need {address}.",
                    hint="shoal pool list",
                )
            self._until_up()
            return known
        address = address or (known.address if known else None)
        if address is None:
            raise Refused("There is no cluster here yet.", hint="shoal pool add user@host")
        return self._start(address, known)

    def stop(self) -> None:
        """Stop the head, and with it all agents on all machines."""
        daemon.stop(self._home)

    def join_argv(self, machine: str, slots: int, *, python: str, home: str, address: str | None = None) -> list[str]:
        """Return the command for a machine, to run in a session of its own; it keeps Ray running until SIGTERM or `--stop`.

        `python` and `home` (Shoal's directory) are those of the machine. A copy of our token must be in `home`/ray/token, mode
        0600; the running daemon is identified in `home`/ray/node.json. `address` is the machine's address for the others.
        """
        where = ["--address", address] if address else []
        return [python, "-m", "shoal.engines.ray.daemon", "--home", home, "--join", self.ensure().gcs_address,
                "--machine", machine, "--slots", str(slots), *where]  # fmt: skip

    def driver(self) -> tuple[str, str]:
        """Return URL and instance of the current Ray driver; raise `Unreachable` if none has started yet."""
        try:
            known = json.loads((self.folder / driver.ANNOUNCED).read_text())
            return known["url"], known["instance"]
        except (OSError, ValueError, KeyError):
            raise Unreachable("the Ray driver has not started yet") from None

    def driver_token(self) -> str:
        path = self.folder / driver.TOKEN
        if not path.exists():
            write_private(path, secrets.token_urlsafe(32))
        return path.read_text()

    def revive_driver(self) -> None:
        """Submit the Ray driver as a job unless it runs or is about to start."""
        self.ensure()
        self.driver_token()
        jobs = [job for job in self._call("GET", "/api/jobs/") if (job.get("submission_id") or "").startswith(_JOB)]
        if any(job["status"] in ("PENDING", "RUNNING") for job in jobs):
            return
        words = [self._python, "-m", "shoal.engines.ray.driver", str(self.folder)]
        body = {"entrypoint": f"exec {shlex.join(words)}", "submission_id": f"{_JOB}-{secrets.token_hex(4)}"}
        self._call("POST", "/api/jobs/", body)

    def _start(self, address: str, known: HeadInfo | None) -> HeadInfo:
        # The second comes with `ray[default]` only, without which the head has no Jobs REST API.
        if any(importlib.util.find_spec(name) is None for name in ("ray", "aiohttp_cors")):
            raise MissingExtra(
                "Several machines need Ray, which is not installed.", hint="pip install 'shoal-train[ray]'"
            )
        if not self.token_file.exists():
            write_private(self.token_file, secrets.token_hex(32))
        # Keep the ports, because machines reconnect to the same address.
        ports = (known.port, known.dashboard_port) if known else (free_port(), free_port())
        info = HeadInfo(address=address, port=ports[0], dashboard_port=ports[1], token_file=self.token_file)
        kept = {name: value for name, value in asdict(info).items() if name != "token_file"}
        write_private(self.folder / "head.json", json.dumps(kept))
        argv = [self._python, "-m", "shoal.engines.ray.daemon", "--home", str(self._home), "--head", "--address", address,
                "--port", str(info.port), "--dashboard-port", str(info.dashboard_port)]  # fmt: skip
        env = {k: v for k, v in os.environ.items() if k not in ("SHOAL_API_KEY", "SHOAL_URL")}
        with (self.folder / "head.log").open("ab") as log:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=env, start_new_session=True
            )
        self._until_up(child)
        return info

    def _until_up(self, child: subprocess.Popen[bytes] | None = None) -> None:
        """Wait until the head is up.

        `child` is its daemon if that was just started and may not have written its signature yet.
        """
        deadline = time.monotonic() + _UP_S
        while time.monotonic() < deadline and (self.runs if child is None else child.poll() is None):
            # Check the signature first: leftovers of a killed daemon answer too, until the new daemon kills them and signs.
            with suppress(Unreachable):
                if self.runs and (self.folder / UP).exists():
                    self._call("GET", "/api/jobs/")  # needs the cluster's GCS, unlike a query of the version
                    return
            time.sleep(0.1)
        if child is not None:
            child.terminate()
        tail = (self.folder / "head.log").read_text(errors="replace").splitlines()[-5:]
        raise TimedOut(
            "The cluster's head did not start: " + " / ".join(tail), hint=f"tail -50 {self.folder / 'head.log'}"
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call Ray's Jobs REST API."""
        info = self.info()
        if info is None:
            raise Unreachable("there is no cluster here yet")
        headers = {"Authorization": f"Bearer {self.token_file.read_text()}"}
        try:
            answer = httpx.request(
                method,
                f"http://127.0.0.1:{info.dashboard_port}{path}",
                json=body,
                headers=headers,
                timeout=_CALL_S,
                trust_env=False,
            )
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Unreachable(f"the head of the cluster: {error}") from None
