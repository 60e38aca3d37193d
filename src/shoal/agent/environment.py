"""The interpreter user code runs on: the runtime's own, or a venv layered on it for a `requirements.txt` at the source root.

Environments are shared by all jobs of this machine and user, under cache_dir/envs/<key>. The key is made of all that decides
their content; one is built under a lock and counts only once its `ready.json` is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.agent import torch_kept
from shoal.agent.inner import kill_below
from shoal.agent.node import NotReady
from shoal.agent.sandbox import Mode, Walls, wrap_build

REQUIREMENTS = "requirements.txt"
_CONFLICT, _NO_SOLUTION = "The conflict is caused by:", "ERROR: ResolutionImpossible"
"""Lines pip prints before and after the reasons of a conflict. The reasons between them are worth more."""
KEEP_UNUSED_S = 30 * 86400.0
_PIP_OPTIONS = ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--no-color"]
_LOOK = """
import json, sys
folders = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
print(json.dumps([list(sys.version_info[:3]), folders]))
"""
_CHECK = """
import sys
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
from importlib.metadata import PackageNotFoundError, version
for line in open(sys.argv[1], encoding="utf-8-sig"):
    line = line.split(" #")[0].strip()
    if not line or line.startswith("#"):
        continue
    need = Requirement(line)  # options, paths and other specialities raise
    if need.marker and not need.marker.evaluate():
        continue
    if need.url or need.extras or not need.specifier.contains(version(need.name), prereleases=True):
        sys.exit(1)
"""


class InstallFailed(NotReady):
    """The requirements cannot be installed; the message is pip's own."""


class Stopped(Exception):
    """The job was stopped meanwhile."""


class Builder:
    """Finds or builds environments, saying what it does through `say`; `stopped` is looked at while it waits.

    pip runs code of the packages it builds, so a build is confined by the `walls` of its job. It can write only to the new
    environment, the source (setuptools builds in place) and a cache of pip's that belongs to `pip_cache`, a workspace:
    what one workspace puts there must not be installed by another.
    """

    def __init__(
        self,
        cache_dir: Path,
        python: str,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
        *,
        walls: Walls = Walls(),  # noqa: B008
        pip_cache: str = "",
        allow_torch_change: bool = False,
    ):
        self._envs, self._python, self._say, self._stopped = cache_dir / "envs", python, say, stopped
        self._walls, self._keeps_torch = walls, not allow_torch_change
        self._pip_cache = cache_dir / "pip" / hashlib.blake2b(pip_cache.encode(), digest_size=8).hexdigest()

    def interpreter(self, source: Path, env: Mapping[str, str], source_key: str) -> str:
        """The python for this source. `env` is what pip sees; `source_key` names the source's content."""
        requirements = source / REQUIREMENTS
        if not requirements.is_file() or not _lines(requirements):
            return self._python
        version, folders = self._look()
        torch = torch_kept.installed(folders) if self._keeps_torch else {}
        runtime: list[object] = [self._python, version, folders, _fingerprint(folders), torch]
        home = self._envs / _key(requirements, env, source_key, runtime)
        if (found := _ready(home)) is None:
            with self._locked(home.with_suffix(".lock")):
                if (found := _ready(home)) is None:
                    found = self._build(home, requirements, dict(env), folders, torch)
        return self._python if found == "runtime" else str(home / "venv/bin/python")

    def _look(self) -> tuple[list[int], list[str]]:
        if self._python == sys.executable:
            folders = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
            return list(sys.version_info[:3]), folders
        done = subprocess.run([self._python, "-I", "-c", _LOOK], capture_output=True, text=True, timeout=60, check=True)
        version, folders = json.loads(done.stdout)
        return version, folders

    def _build(
        self, home: Path, requirements: Path, env: dict[str, str], folders: list[str], torch: dict[str, str]
    ) -> str:
        """Build it, keeping these versions of torch."""
        if problem := torch_kept.conflict(requirements, torch):
            raise InstallFailed(problem)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        if self._satisfied(requirements, env):
            return _mark_ready(home, "runtime")
        self._say(f"[shoal] installing {REQUIREMENTS}")
        started = time.monotonic()
        venv = self._install(home, requirements, env, folders, torch)
        if torch and (others := torch_kept.replaced(venv)):
            raise InstallFailed(f"{REQUIREMENTS} would install {', '.join(others)}; {torch_kept.keeps(torch)}")
        self._say(f"[shoal] environment ready in {time.monotonic() - started:.1f} s")
        # The marker must not outlive the files it vouches for, should the machine lose power now.
        os.sync()
        return _mark_ready(home, "venv")

    def _install(
        self, home: Path, requirements: Path, env: dict[str, str], folders: list[str], torch: dict[str, str]
    ) -> Path:
        """The new virtual environment, with all that is asked for in it."""
        venv, tmp = home / "venv", home / "tmp"
        for folder in (venv, tmp, self._pip_cache):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        has_pip = any((Path(f) / "pip").is_dir() for f in folders)
        # -I: a module of the source's own must not stand in for one that venv or pip imports.
        self._run(
            [self._python, "-I", "-m", "venv", *(["--without-pip"] if has_pip else []), str(venv)], env, home, [venv]
        )
        _layer(venv, folders)
        pip = [str(venv / "bin/python"), "-I", "-m", "pip", "install", *_PIP_OPTIONS, "-r", REQUIREMENTS]
        env |= {"VIRTUAL_ENV": str(venv)}
        if self._walls.mode is not Mode.REWRITE:
            env |= {"PIP_CACHE_DIR": str(self._pip_cache), "TMPDIR": str(tmp), "XDG_CACHE_HOME": str(tmp / "cache")}
        if torch:
            env |= _kept(home / "constraints.txt", torch, env)
        try:
            self._run(pip, env, requirements.parent, [venv, tmp, self._pip_cache, requirements.parent])
        except InstallFailed as error:
            raise InstallFailed(_with_hint(str(error), torch)) from None
        shutil.rmtree(tmp, ignore_errors=True)
        return venv

    def _satisfied(self, requirements: Path, env: Mapping[str, str]) -> bool:
        check = [self._python, "-I", "-c", _CHECK, str(requirements)]
        return subprocess.run(check, env=dict(env), capture_output=True, timeout=120, check=False).returncode == 0

    def _run(self, argv: list[str], env: Mapping[str, str], cwd: Path, writable: list[Path]) -> None:
        process = subprocess.Popen(
            wrap_build(argv, self._walls, writable),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        last = errors = ""
        causes: list[str] | None = None
        for line in self._output(process):
            self._say(line)
            last = line.strip() or last
            if line.lstrip().startswith("ERROR:"):
                errors = line.strip()
            elif line.startswith(_CONFLICT):
                causes = []
            elif causes is not None and line.startswith("    "):
                causes.append(line.strip())
        if errors.startswith(_NO_SOLUTION) and causes:
            errors = f"ERROR: {'; '.join(causes[:5])}"
        if process.returncode:
            raise InstallFailed(f"{REQUIREMENTS}: {errors or last or f'exit code {process.returncode}'}")

    def _output(self, process: subprocess.Popen[bytes]) -> Iterator[str]:
        """Its lines as they come; a stop kills it."""
        import selectors

        assert process.stdout is not None  # noqa: S101
        rest = b""
        with selectors.DefaultSelector() as selector, process.stdout as out:
            selector.register(out, selectors.EVENT_READ)
            while True:
                if self._stopped():
                    kill_below(process.pid)
                    process.kill()
                    process.wait()
                    raise Stopped
                if not selector.select(0.1):
                    continue
                data = os.read(out.fileno(), 1 << 16)
                *lines, rest = (rest + data).split(b"\n")
                yield from (line.decode("utf-8", "replace").rstrip("\r") for line in lines)
                if not data:
                    break
        if rest:
            yield rest.decode("utf-8", "replace")
        process.wait()

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as lock:
            waited = False
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not waited:
                        self._say("[shoal] waiting for another job that builds the same environment")
                    waited = True
                    if self._stopped():
                        raise Stopped from None
                    time.sleep(0.1)
            yield


def _kept(file: Path, torch: dict[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep pip to these versions, also in the environments it makes to build packages in."""
    file.write_text("".join(f"{line}\n" for line in torch_kept.constraints(torch)))
    names = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")  # what a build may use has been the second's since pip 25.3
    return {name: " ".join(filter(None, [str(file), env.get(name)])) for name in names}


def _with_hint(error: str, torch: Mapping[str, str]) -> str:
    """pip's words, and what to do about them if they are about torch."""
    return f"{error} {torch_kept.keeps(dict(torch))}" if torch and re.search(r"\btorch", error) else error


def remove_unused(cache_dir: Path, unused_s: float = KEEP_UNUSED_S) -> None:
    """Delete environments no job has used for so long."""
    for marker in (cache_dir / "envs").glob("*/ready.json"):
        with suppress(OSError):
            if time.time() - marker.stat().st_mtime > unused_s:
                marker.unlink()
                shutil.rmtree(marker.parent, ignore_errors=True)


def _ready(home: Path) -> str | None:
    marker = home / "ready.json"
    with suppress(OSError, ValueError, KeyError):
        kind = str(json.loads(marker.read_text())["kind"])
        os.utime(marker)
        return kind
    return None


def _mark_ready(home: Path, kind: str) -> str:
    aside = home / "ready.tmp"
    aside.write_text(json.dumps({"kind": kind}))
    aside.rename(home / "ready.json")
    return kind


def _layer(venv: Path, folders: list[str]) -> None:
    """Make the runtime's packages visible behind the venv's own; to pip they count as installed."""
    site = next((venv / "lib").glob("python*/site-packages"))
    # addsitedir also follows the runtime's own .pth files, which editable installs live by.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    (site / "_shoal_runtime.pth").write_text("\n".join(lines) + "\n")


def _key(requirements: Path, env: Mapping[str, str], source_key: str, runtime: list[object]) -> str:
    lines = _lines(requirements)
    # A requirement that points into the source depends on all of it, not only on its own line.
    local = any(line.startswith((".", "/", "-", "file:")) or "@ file:" in line for line in lines)
    pip = sorted((k, v) for k, v in env.items() if k.startswith("PIP_"))
    parts = [requirements.read_bytes().decode("utf-8", "replace"), runtime, pip, source_key if local else ""]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _lines(requirements: Path) -> list[str]:
    text = requirements.read_text("utf-8-sig", "replace")
    return [line for raw in text.splitlines() if (line := raw.strip()) and not line.startswith("#")]


def _fingerprint(folders: list[str]) -> list[str]:
    """Names and versions of the runtime's packages."""
    found: set[str] = set()
    for folder in folders:
        with suppress(OSError):
            found.update(
                e.name for e in os.scandir(folder) if e.name.endswith((".dist-info", ".egg-info", ".egg-link"))
            )
    return sorted(found)
