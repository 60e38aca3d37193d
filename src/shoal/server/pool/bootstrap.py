"""Program that runs on a machine of the pool: sent there as text and run by its own Python (3.8 or newer, nothing installed).

It reports as JSON lines on stdout: {"say": …} for progress, at the end {"done": …} or {"error": …}.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.server.pool.probe import probe, report

STARTED_S, ENDED_S = 60.0, 30.0


class Failed(Exception):
    pass


def main(task: dict[str, Any]) -> int:
    try:
        report(done=globals()[task["do"]](task))
    except (Failed, OSError, subprocess.SubprocessError) as error:
        report(error=str(error))
        return 1
    return 0


def hello(task: dict[str, Any]) -> dict[str, Any]:
    """Show that a program can run on this machine at all."""
    return {"executable": sys.executable}


def install(task: dict[str, Any]) -> dict[str, Any]:
    """Install the runtime, a virtual environment with the server's versions of everything, unless it is complete already."""
    root = Path(task["home"]) / "runtime"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    build = task.get("builds", {}).get(task.get("kind")) or {}
    folder = root / "-".join(filter(None, [task["runtime"], build.get("name")]))
    python, ready = folder / "bin" / "python", folder / ".ready"
    with (root / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            run([sys.executable, "-m", "venv", str(folder)], "a virtual environment could not be created")
            limits = folder / "constraints.txt"
            limits.write_text(pinned(task["constraints"], build.get("pins", "")))
            task.get("report", report)(
                say=f"installing Shoal, {task['daemon']['title']} and torch (the first time takes minutes)"
            )
            wanted = f"{task['wheel']}[{task['extras']}]"
            pip = [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "-c",
                str(limits),
                *sources(task, build),
                wanted,
            ]
            run(pip, "pip could not install the runtime")
            ready.write_text("")
    return {"python": str(python)}


def sources(task: dict[str, Any], build: dict[str, str]) -> list[str]:
    """Return the options of pip that say where packages come from: a wheelhouse alone, or PyPI and the index of torch's builds."""
    if task.get("wheelhouse"):
        return ["--no-index", "--find-links", task["wheelhouse"]]
    return ["--extra-index-url", build["index"]] if build.get("index") else []


def try_devices(task: dict[str, Any]) -> dict[str, Any]:
    """Run a tensor on every accelerator of this machine and an all-reduce over all of them; see shoal.agent.devices.trial."""
    argv = [sys.executable, "-m", "shoal.agent.devices.trial"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise Failed(tail_of(done.stderr))
    return dict(json.loads(done.stdout.splitlines()[-1]))


def tail_of(output: bytes) -> str:
    """Return the last line that a program has printed."""
    return (output.decode(errors="replace").strip().splitlines() or ["no output"])[-1]


def read_devices(task: dict[str, Any]) -> dict[str, Any]:
    """Return the accelerators of this machine as the runtime reads them; see shoal.agent.devices.report."""
    argv = [task.get("python") or sys.executable, "-m", "shoal.agent.devices.report"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise Failed("its accelerators could not be read: " + tail_of(done.stderr))
    return dict(json.loads(done.stdout.splitlines()[-1]))


def pinned(constraints: str, pins: str) -> str:
    """Return the constraints with the exact builds in place of the plain versions of the same packages."""
    exact = {line.partition("==")[0] for line in pins.splitlines()}
    return "".join(f"{line}\n" for line in constraints.splitlines() if line.partition("==")[0] not in exact) + pins


def kind_of(facts: dict[str, Any]) -> str:
    """Return the kind of accelerators a machine seems to have, which decides the build of torch it gets."""
    return "cuda" if facts["nvidia"] else "rocm" if facts["rocm"] else "xpu" if facts["xpu"] else "cpu"


def run(argv: list[str], what: str) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        raise Failed(f"{what}: " + " · ".join(line.strip() for line in lines[-5:]))


def start(task: dict[str, Any]) -> dict[str, Any]:
    """Start the cluster's daemon in a session of its own; return when it has written its pid, raise if it has ended."""
    daemon = Daemon(task)
    folder = daemon.folder
    if task.get("keep") and daemon.pid():
        return {"note": ""}
    daemon.end()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(task["token"])
    log = folder / "node.log"
    with log.open("ab") as out:
        env = {**os.environ, "SHOAL_HOME": task["home"]}
        child = subprocess.Popen(
            task["argv"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=env, start_new_session=True
        )
    deadline = time.monotonic() + STARTED_S
    while not daemon.pid():
        if child.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"the {daemon.title} node did not start: {tail(log)}")
        time.sleep(0.05)
    return {"note": after_reboot(task["argv"], log) if task.get("persist") else ""}


class Daemon:
    """The cluster's daemon on this machine; the server says which it is."""

    def __init__(self, task: dict[str, Any]):
        self.folder = Path(task["home"]) / task["daemon"]["folder"]
        self.title = task["daemon"]["title"]
        self._programs = {name.encode() for name in task["daemon"]["programs"]}

    def pid(self) -> int:
        """Return the pid in node.json; 0 if that process no longer runs."""
        with suppress(OSError, ValueError, KeyError):
            pid = int(json.loads((self.folder / "node.json").read_text())["pid"])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return pid if self._programs & set(words) else 0
        return 0

    def end(self) -> None:
        """Stop the daemon and wait for it; it stops everything it has started first."""
        deadline = time.monotonic() + ENDED_S
        while pid := self.pid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            if time.monotonic() > deadline:
                raise Failed(f"the {self.title} node (process {pid}) did not end")
            time.sleep(0.2)


def last_words(task: dict[str, Any]) -> dict[str, Any]:
    """Return the last lines of the daemon's log."""
    return {"text": tail(Daemon(task).folder / "node.log")}


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " · ".join(line.strip() for line in lines[-5:]) or "its log is empty"


CRON_MARK = "# shoal pool"


def after_reboot(argv: list[str], log: Path) -> str:
    """Have cron start the node after a reboot, as the server cannot reach this machine; return a note if there is no cron."""
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


def stop(task: dict[str, Any]) -> dict[str, Any]:
    """Stop the daemon and all it started, and delete the files of its jobs."""
    home = Path(task["home"])
    if shutil.which("crontab") is not None and len(kept := crontab_of_others()) < len(crontab()):
        write_crontab(kept)
    daemon = Daemon(task)
    daemon.end()
    for folder in (daemon.folder, home / "nodes"):
        shutil.rmtree(folder, ignore_errors=True)
    return {}


def speed(task: dict[str, Any]) -> dict[str, Any]:
    """Measure the network speed between this machine and the others; all of them run it at the same time."""
    argv = [sys.executable, "-m", "shoal.sdk.speed"]
    done = subprocess.run(argv, input=json.dumps(task).encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise Failed(tail_of(done.stderr))
    return {"pairs": json.loads(done.stdout.splitlines()[-1])}


def join(task: dict[str, Any]) -> int:
    """Do all the steps on a machine that joins by itself, with progress for the person who pasted the join command."""
    if sys.version_info[:2] != tuple(task["python"]):
        become_right_python(task["python"])
    link = Link(sys.argv[1], os.environ.pop("SHOAL_JOIN", ""), task["ca"])
    try:
        facts = link.enter(task)
        plan = link.join(facts)
        done = join_pool(task, plan, facts, link)
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


def join_pool(task: dict[str, Any], plan: dict[str, Any], facts: dict[str, Any], link: Link) -> str:
    home = plan["home"]
    try:
        wheel = Path(home) / "wheels" / task["sha256"][:12] / task["wheel_name"]
        wheel.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        wheel.write_bytes(checked(link.get("wheel"), task["sha256"]))
        python = install(
            {
                **task,
                "home": home,
                "kind": kind_of(facts),
                "wheel": str(wheel),
                "report": lambda say: print(say, flush=True),
            }
        )["python"]
        print("Reading the accelerators …", flush=True)
        plan = link.join(facts | {"inventory": read_devices({"python": python})})
        print(f"Starting the {task['daemon']['title']} node …", flush=True)
        argv = [python if word == "{python}" else word for word in plan["argv"]]
        note = start({"home": home, "argv": argv, "token": plan["token"], "persist": True, "daemon": task["daemon"]})[
            "note"
        ]
    except (Failed, OSError, subprocess.SubprocessError) as error:
        link.post("done", {"ok": False, "error": str(error)[:8000]})
        raise
    link.post("done", {"ok": True, "python": python})
    return str(note)


def checked(data: bytes, sha256: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Failed("the download is damaged: its checksum is wrong")
    return data


class Link:
    """Connection to the server's routes for joining."""

    def __init__(self, url: str, token: str, ca: str):
        # This program was checked by its hash, so the CA in it is the server's.
        self._tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=ca))
        self._url, self._headers = f"{url}/api/v1/pool/join", {"X-Shoal-Join": token}

    def enter(self, task: dict[str, Any]) -> dict[str, Any]:
        """Probe this machine, with the server's help; return its facts."""
        print("Checking this machine …", flush=True)
        server = urllib.parse.urlsplit(self._url)
        ways = self.post("knock", {})
        task = {
            **ways,
            "server": server.hostname,
            "packages": task["packages"],
            "report": lambda **words: self.post("knock", {"port": words["listening"]}),
        }
        return probe(task)

    def join(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Request to join; return the plan of what to start, which is final once the facts have the inventory."""
        return self.post("join", {"facts": facts, "time": time.time()})

    def get(self, path: str) -> bytes:
        return self._send(f"{self._url}/{path}", None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._send(f"{self._url}/{path}", json.dumps(body).encode())
        return dict(json.loads(answer)) if answer else {}

    def _send(self, url: str, body: bytes | None) -> bytes:
        headers = {**self._headers, "Content-Type": "application/json"}
        request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310
        # No proxy: the server is on the same network.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), self._tls)
        try:
            with opener.open(request, timeout=120) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            said = json.loads(error.read() or b"{}").get("error", {})
            raise Failed(" ".join(filter(None, [said.get("message") or str(error), said.get("hint")]))) from None
