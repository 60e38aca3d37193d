"""The centre of the Ray cluster on the server's machine: outlives the server, is found again by it, and runs the gateway.

Its directory holds all there is: token (0600), ports, who keeps it running, and the gateway's address.
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
from shoal.engines.ray import gateway, node
from shoal.engines.ray.node import SIGNATURE, TOKEN, UP, folder_in

logger = logging.getLogger(__name__)

_UP_S = 90.0
_CALL_S = 10.0
_JOB = "shoal-gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInfo:
    address: str
    """The private address machines see it at."""
    port: int
    dashboard_port: int
    """On loopback."""
    token_file: Path

    @property
    def gcs_address(self) -> str:
        """What machines join."""
        return f"{self.address}:{self.port}"


class Head:
    def __init__(self, layout: Layout, *, python: str = sys.executable):
        self._home, self._python = layout.server_dir, python
        self.folder = folder_in(self._home)
        self.token_file = self.folder / TOKEN

    def info(self) -> HeadInfo | None:
        """What was last started here, whether or not it runs now."""
        try:
            known = json.loads((self.folder / "head.json").read_text())
            return HeadInfo(**known, token_file=self.token_file)
        except (OSError, ValueError, TypeError):
            return None

    @property
    def runs(self) -> bool:
        return holder(self.folder / SIGNATURE) is not None

    def ensure(self, address: str | None = None) -> HeadInfo:
        """Running, at this private address (None: the one it has had). Returns once machines can join."""
        known = self.info()
        if known is not None and self.runs:
            if address not in (None, known.address):
                raise Refused(
                    f"The head of the cluster is at {known.address}, which is not the way to these machines ({address}).",
                    hint="shoal pool list",
                )
            self._until_up()
            return known
        address = address or (known.address if known else None)
        if address is None:
            raise Refused("There is no cluster here yet.", hint="shoal pool add user@host")
        return self._start(address, known)

    def stop(self) -> None:
        """And with it all agents on all machines."""
        node.stop(self._home)

    def join_argv(self, machine: str, slots: int, *, python: str, home: str, address: str | None = None) -> list[str]:
        """What to run on a machine, in a session of its own; it keeps Ray there running until SIGTERM, or `--stop`.

        `python` and `home` (Shoal's directory) are the machine's. A copy of our token must be in `home`/ray/token, mode 0600;
        who runs is signed in `home`/ray/node.json. `address` is the machine's, as the others see it.
        """
        where = ["--address", address] if address else []
        return [python, "-m", "shoal.engines.ray.node", "--home", home, "--join", self.ensure().gcs_address,
                "--machine", machine, "--slots", str(slots), *where]  # fmt: skip

    def gateway(self) -> tuple[str, str]:
        """(URL, instance) of the present gateway. Raises Unreachable if there was none yet."""
        try:
            known = json.loads((self.folder / gateway.ANNOUNCED).read_text())
            return known["url"], known["instance"]
        except (OSError, ValueError, KeyError):
            raise Unreachable("the cluster's gateway has not started yet") from None

    def gateway_token(self) -> str:
        path = self.folder / gateway.TOKEN
        if not path.exists():
            write_private(path, secrets.token_urlsafe(32))
        return path.read_text()

    def revive_gateway(self) -> None:
        """Submit it unless it runs or is about to."""
        self.ensure()
        self.gateway_token()
        jobs = [job for job in self._call("GET", "/api/jobs/") if (job.get("submission_id") or "").startswith(_JOB)]
        if any(job["status"] in ("PENDING", "RUNNING") for job in jobs):
            return
        words = [self._python, "-m", "shoal.engines.ray.gateway", str(self.folder)]
        body = {"entrypoint": f"exec {shlex.join(words)}", "submission_id": f"{_JOB}-{secrets.token_hex(4)}"}
        self._call("POST", "/api/jobs/", body)

    def _start(self, address: str, known: HeadInfo | None) -> HeadInfo:
        # The second comes with `ray[default]` only, without which the head has no Jobs REST.
        if any(importlib.util.find_spec(name) is None for name in ("ray", "aiohttp_cors")):
            raise MissingExtra("Several machines need Ray, which is not installed.", hint="pip install 'shoal[ray]'")
        if not self.token_file.exists():
            write_private(self.token_file, secrets.token_hex(32))
        # Machines come back to where they found it.
        ports = (known.port, known.dashboard_port) if known else (free_port(), free_port())
        info = HeadInfo(address=address, port=ports[0], dashboard_port=ports[1], token_file=self.token_file)
        kept = {name: value for name, value in asdict(info).items() if name != "token_file"}
        write_private(self.folder / "head.json", json.dumps(kept))
        argv = [self._python, "-m", "shoal.engines.ray.node", "--home", str(self._home), "--head", "--address", address,
                "--port", str(info.port), "--dashboard-port", str(info.dashboard_port)]  # fmt: skip
        env = {k: v for k, v in os.environ.items() if k not in ("SHOAL_API_KEY", "SHOAL_URL")}
        with (self.folder / "head.log").open("ab") as log:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=env, start_new_session=True
            )
        self._until_up(child)
        return info

    def _until_up(self, child: subprocess.Popen[bytes] | None = None) -> None:
        """`child`: the supervisor, if it was just started and may not have signed yet."""
        deadline = time.monotonic() + _UP_S
        while time.monotonic() < deadline and (self.runs if child is None else child.poll() is None):
            # What a killed supervisor has left answers too, until the next one, before it signs, has ended it.
            with suppress(Unreachable):
                if self.runs and (self.folder / UP).exists():
                    self._call("GET", "/api/jobs/")  # which asks the cluster's centre; the version is told without it
                    return
            time.sleep(0.1)
        if child is not None:
            child.terminate()
        tail = (self.folder / "head.log").read_text(errors="replace").splitlines()[-5:]
        raise TimedOut(
            "The cluster's head did not start: " + " / ".join(tail), hint=f"tail -50 {self.folder / 'head.log'}"
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ray's Jobs REST."""
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
