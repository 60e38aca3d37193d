"""What is done on a machine of the pool itself: sent there as text and run by its own Python (3.8 or newer, nothing installed).

Says what it does as JSON lines on stdout: {"say": …} on the way, at last {"done": …} or {"error": …}.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.server.services.pool_probe import probe, tell

STARTED_S, ENDED_S = 60.0, 30.0


class Failed(Exception):
    pass


def main(order: dict[str, Any]) -> int:
    try:
        tell(done=globals()[order["do"]](order))
    except (Failed, OSError, subprocess.SubprocessError) as error:
        tell(error=str(error))
        return 1
    return 0


def hello(order: dict[str, Any]) -> dict[str, Any]:
    """That a program of ours runs here at all."""
    return {"executable": sys.executable}


def install(order: dict[str, Any]) -> dict[str, Any]:
    """The runtime: an environment of its own with the server's versions of everything. One that stands is kept."""
    root = Path(order["home"]) / "runtime"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = root / order["runtime"]
    python, ready = folder / "bin" / "python", folder / ".ready"
    with (root / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            run([sys.executable, "-m", "venv", str(folder)], "an environment could not be made")
            limits = folder / "constraints.txt"
            limits.write_text(order["constraints"])
            order.get("tell", tell)(say="installing Shoal, Ray and torch (the first time takes minutes)")
            wanted = f"{order['wheel']}[{order['extras']}]"
            pip = [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "-c",
                str(limits),
                wanted,
            ]
            run(pip, "pip could not install the runtime")
            ready.write_text("")
    return {"python": str(python)}


def run(argv: list[str], what: str) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        raise Failed(f"{what}: " + " · ".join(line.strip() for line in lines[-5:]))


def start(order: dict[str, Any]) -> dict[str, Any]:
    """The supervised Ray node, in a session of its own; back once it says who it is, or has ended."""
    folder = Path(order["home"]) / "ray"
    if order.get("keep") and node_pid(folder):
        return {"note": ""}
    end_node(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(order["token"])
    log = folder / "node.log"
    with log.open("ab") as out:
        env = {**os.environ, "SHOAL_HOME": order["home"]}
        child = subprocess.Popen(
            order["argv"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=env, start_new_session=True
        )
    deadline = time.monotonic() + STARTED_S
    while not node_pid(folder):
        if child.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"the Ray node did not start: {tail(log)}")
        time.sleep(0.05)
    return {"note": after_reboot(order["argv"], log) if order.get("persist") else ""}


def node_pid(folder: Path) -> int:
    """Of the supervisor that has signed there; 0 if it lives no more."""
    with suppress(OSError, ValueError, KeyError):
        pid = int(json.loads((folder / "node.json").read_text())["pid"])
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return pid if b"shoal.engines.ray.node" in words else 0
    return 0


def end_node(folder: Path) -> None:
    """It ends all it has started before it ends itself."""
    deadline = time.monotonic() + ENDED_S
    while pid := node_pid(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if time.monotonic() > deadline:
            raise Failed(f"the Ray node (process {pid}) does not end")
        time.sleep(0.2)


def last_words(order: dict[str, Any]) -> dict[str, Any]:
    """What the Ray node has said of late."""
    return {"text": tail(Path(order["home"]) / "ray" / "node.log")}


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " · ".join(line.strip() for line in lines[-5:]) or "it said nothing"


CRON_MARK = "# shoal pool"


def after_reboot(argv: list[str], log: Path) -> str:
    """Nobody can start it from outside when this machine comes back: cron does."""
    line = f"@reboot {shlex.join(argv)} >> {shlex.quote(str(log))} 2>&1 {CRON_MARK}"
    if shutil.which("crontab") is None:
        return f"There is no cron here; after a reboot, run: {shlex.join(argv)} &"
    write_crontab([*crontab_of_others(), line])
    return ""


def crontab_of_others() -> list[str]:
    return [line for line in crontab() if not line.endswith(CRON_MARK)]


def crontab() -> list[str]:
    shown = subprocess.run(["crontab", "-l"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return shown.stdout.decode().splitlines()


def write_crontab(lines: list[str]) -> None:
    subprocess.run(["crontab", "-"], input="".join(f"{line}\n" for line in lines).encode(), check=True)


def stop(order: dict[str, Any]) -> dict[str, Any]:
    """End the Ray node and all it started; what jobs have left on the disk goes too."""
    home = Path(order["home"])
    if shutil.which("crontab") is not None and len(kept := crontab_of_others()) < len(crontab()):
        write_crontab(kept)
    end_node(home / "ray")
    for name in ("ray", "nodes"):
        shutil.rmtree(home / name, ignore_errors=True)
    return {}


def speed(order: dict[str, Any]) -> dict[str, Any]:
    """How fast this machine and the others reach each other, measured by all of them at once."""
    argv = [sys.executable, "-m", "shoal.sdk.speed"]
    done = subprocess.run(argv, input=json.dumps(order).encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise Failed(done.stderr.decode(errors="replace").strip().splitlines()[-1])
    return {"pairs": json.loads(done.stdout.splitlines()[-1])}


def join(order: dict[str, Any]) -> int:
    """All of it, for a machine that was not reached but came by itself; told to whoever has pasted the line."""
    if sys.version_info[:2] != tuple(order["python"]):
        become_right_python(order["python"])
    link = Link(sys.argv[1], os.environ.pop("SHOAL_JOIN", ""))
    try:
        plan = link.enter(order)
        done = take_part(order, plan, link)
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"This machine is in the pool as '{plan['name']}'. {done}".rstrip())
    return 0


def become_right_python(version: list[int]) -> None:
    name = f"python{version[0]}.{version[1]}"
    found = shutil.which(name)
    if found is None:
        sys.exit(f"error: the server runs on Python {version[0]}.{version[1]}: apt install {name} {name}-venv")
    os.execv(found, [found, "-c", globals()["SOURCE"], *sys.argv[1:]])  # noqa: S606


def take_part(order: dict[str, Any], plan: dict[str, Any], link: Link) -> str:
    home = plan["home"]
    try:
        wheel = Path(home) / "wheels" / order["sha256"][:12] / order["wheel_name"]
        wheel.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        wheel.write_bytes(checked(link.get("wheel"), order["sha256"]))
        python = install({**order, "home": home, "wheel": str(wheel), "tell": lambda say: print(say, flush=True)})[
            "python"
        ]
        print("Starting the Ray node …", flush=True)
        argv = [python if word == "{python}" else word for word in plan["argv"]]
        note = start({"home": home, "argv": argv, "token": plan["token"], "persist": True})["note"]
    except (Failed, OSError, subprocess.SubprocessError) as error:
        link.post("done", {"ok": False, "error": str(error)[:8000]})
        raise
    link.post("done", {"ok": True, "python": python})
    return str(note)


def checked(data: bytes, sha256: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Failed("what arrived is not what the server sent")
    return data


class Link:
    def __init__(self, url: str, token: str):
        self._url, self._headers = f"{url}/api/v1/pool/join", {"X-Shoal-Join": token}

    def enter(self, order: dict[str, Any]) -> dict[str, Any]:
        """Look at this machine, with the server's help, and ask to be taken in."""
        print("Looking at this machine …", flush=True)
        server = urllib.parse.urlsplit(self._url)
        ways = self.post("knock", {})
        order = {
            **ways,
            "server": server.hostname,
            "tell": lambda **words: self.post("knock", {"port": words["listening"]}),
        }
        return self.post("join", {"facts": probe(order), "time": time.time()})

    def get(self, path: str) -> bytes:
        return self._send(f"{self._url}/{path}", None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._send(f"{self._url}/{path}", json.dumps(body).encode())
        return dict(json.loads(answer)) if answer else {}

    def _send(self, url: str, body: bytes | None) -> bytes:
        headers = {**self._headers, "Content-Type": "application/json"}
        request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310
        # No proxy: the server is on our own network.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            said = json.loads(error.read() or b"{}").get("error", {})
            raise Failed(" ".join(filter(None, [said.get("message") or str(error), said.get("hint")]))) from None
