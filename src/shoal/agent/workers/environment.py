"""Builds the Python environment of a job: the runtime itself, or a venv layered on it if the source names packages.

Environments are shared by all jobs of this machine and user, under cache_dir/envs/<key>. The key is a hash of everything that
determines their content. An environment is built under a file lock and used only once its `ready.json` exists.
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
from typing import TYPE_CHECKING

from shoal.agent.lease.volume import walk
from shoal.agent.node.workdir import NotReady
from shoal.agent.sandbox.mounts import Bind, Mode, Walls, wrap_build
from shoal.agent.workers import environment_uses, torch_pin
from shoal.agent.workers.parent import kill_below
from shoal.agent.workers.requirement_files import REQUIREMENTS, Needs, find

if TYPE_CHECKING:
    from shoal.agent.sandbox.job import Wall

_CONFLICT, _NO_SOLUTION = "The conflict is caused by:", "ERROR: ResolutionImpossible"
"""Lines that pip prints before and after the causes of a conflict. We show the causes instead of the last line."""
KEEP_UNUSED_S = 30 * 86400.0
_PIP_OPTIONS = ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--no-color"]
_INSPECT = """
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
    """The job was stopped while its environment was being built."""


class Builder:
    """Finds or builds environments. `say` receives progress lines; `stopped` is polled while it waits.

    pip runs code of the packages it builds, so a build is confined by the `walls` of its job. It can write only to the new
    environment, the source (setuptools builds in place) and a pip cache of the workspace named by `pip_cache`: packages cached
    by one workspace must not be installed by another.
    """

    def __init__(
        self,
        cache_dir: Path,
        python: str,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
        *,
        walls: Walls = Walls(),  # noqa: B008
        wall: Wall | None = None,
        pip_cache: str = "",
        allow_torch_change: bool = False,
    ):
        self._envs, self._python, self._say, self._stopped = cache_dir / "envs", python, say, stopped
        self._walls, self._keeps_torch = walls, not allow_torch_change
        self._wall = wall if wall is not None and wall.is_own else None
        self._owner = pip_cache if self._wall is not None else ""
        """Workspace that the environments belong to: code that one workspace's build ran must not reach another's jobs."""
        self._file = REQUIREMENTS
        """File that the build is for, to name in errors."""
        self._pip_cache = cache_dir / "pip" / hashlib.blake2b(pip_cache.encode(), digest_size=8).hexdigest()

    def interpreter(self, source: Path, env: Mapping[str, str], source_key: str) -> str:
        """Return the Python executable for this source.

        `env` is pip's environment; `source_key` is a key of the source's content.
        """
        version, folders = self._inspect_python()
        present = environment_uses.installed(folders)
        needs = find(source, {name: one[0] for name, one in present.items()})
        for note in needs.notes if needs else []:
            self._say(f"[shoal] {note}")
        if needs is None or not needs.lines:
            return self._python
        torch = torch_pin.installed(folders) if self._keeps_torch else {}
        runtime: list[object] = [self._python, version, folders, torch]
        runtime += [self._owner] if self._owner else []
        base = _key(source, needs, env, source_key, runtime)
        home = self._envs / environment_uses.key(base, present, environment_uses.load(self._envs, base))
        try:
            if (found := _ready(home)) is None:
                with self._locked(home.with_suffix(".lock")):
                    if (found := _ready(home)) is None:
                        found = self._build(home, source, needs, dict(env), folders, torch)
                        self._note_uses(home, found, base, needs, present)
        except InstallFailed as error:
            if needs.is_own:
                raise
            self._say(f"[shoal] {error}")
            self._say(
                f"[shoal] the packages of {needs.name} are not installed; write a {REQUIREMENTS} to install others"
            )
            return self._python
        kind, at = found
        return self._python if kind == "runtime" else str(at / "venv/bin/python")

    def _note_uses(
        self, home: Path, built: tuple[str, Path], base: str, needs: Needs, present: dict[str, tuple[str, Path]]
    ) -> None:
        """Remember which packages of the runtime the environment uses, and how to find it by them."""
        own = environment_uses.installed(home.glob("venv/lib/python*/site-packages"))
        names = environment_uses.closure(needs.lines, own, present)
        if names is None:
            return
        names |= set(environment_uses.load(self._envs, base) or ())
        also = self._envs / environment_uses.key(base, present, names)
        if also != home and _ready(also) is None:
            also.mkdir(exist_ok=True)
            _mark_ready(also, built[0], home)
        environment_uses.save(self._envs, base, names)

    def _inspect_python(self) -> tuple[list[int], list[str]]:
        if self._python == sys.executable:
            folders = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
            return list(sys.version_info[:3]), folders
        done = subprocess.run(
            [self._python, "-I", "-c", _INSPECT], capture_output=True, text=True, timeout=60, check=True
        )
        version, folders = json.loads(done.stdout)
        return version, folders

    def _build(
        self, home: Path, source: Path, needs: Needs, env: dict[str, str], folders: list[str], torch: dict[str, str]
    ) -> tuple[str, Path]:
        """Build an environment that keeps these versions of torch; return "venv", or "runtime" if no venv is needed."""
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        self._file = needs.name
        requirements = source / REQUIREMENTS
        if not needs.is_own:
            requirements = home / REQUIREMENTS
            requirements.write_text("".join(f"{line}\n" for line in needs.lines))
        if problem := torch_pin.conflict(requirements, torch):
            raise InstallFailed(problem.replace(REQUIREMENTS, needs.name, 1))
        if self._satisfied(requirements, env):
            return _mark_ready(home, "runtime")
        self._say(f"[shoal] installing {needs.name}")
        started = time.monotonic()
        pins = [*torch_pin.constraints(torch), *needs.constraints]
        venv = self._install(home, requirements, env, folders, torch, pins, source)
        if torch and (others := torch_pin.replaced(venv)):
            raise InstallFailed(f"{needs.name} would install {', '.join(others)}; {torch_pin.keeps(torch)}")
        self._say(f"[shoal] environment ready in {time.monotonic() - started:.1f} s")
        # Sync before the marker is written: after a power loss there must be no marker without the files.
        os.sync()
        return _mark_ready(home, "venv")

    def _install(
        self,
        home: Path,
        requirements: Path,
        env: dict[str, str],
        folders: list[str],
        torch: dict[str, str],
        pins: list[str],
        source: Path,
    ) -> Path:
        """Create the virtual environment and install the requirements into it; return its folder."""
        venv, tmp = home / "venv", home / "tmp"
        for folder in (venv, tmp, self._pip_cache):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        has_pip = any((Path(f) / "pip").is_dir() for f in folders)
        # -I: a module in the source must not shadow one that venv or pip imports.
        self._run(
            [self._python, "-I", "-m", "venv", *(["--without-pip"] if has_pip else []), str(venv)], env, home, [venv]
        )
        _layer(venv, folders)
        pip = [
            str(venv / "bin/python"),
            "-I",
            "-m",
            "pip",
            "install",
            *_PIP_OPTIONS,
            "-r",
            str(requirements) if requirements.parent == home else REQUIREMENTS,
        ]
        env |= {"VIRTUAL_ENV": str(venv)}
        if self._walls.mode is not Mode.REWRITE or self._wall is not None:
            env |= {"PIP_CACHE_DIR": str(self._pip_cache), "TMPDIR": str(tmp), "XDG_CACHE_HOME": str(tmp / "cache")}
        if pins:
            env |= _kept(home / "constraints.txt", pins, env)
        try:
            self._run(pip, env, source, [venv, tmp, self._pip_cache, source])
        except InstallFailed as error:
            raise InstallFailed(_with_hint(str(error), torch)) from None
        finally:
            shutil.rmtree(home / "source", ignore_errors=True)
        shutil.rmtree(tmp, ignore_errors=True)
        if self._wall is not None:
            _open_to_readers(venv)
        return venv

    def _confined(self, wall: Wall, argv: list[str], env: dict[str, str], cwd: Path, writable: list[Path]) -> list[str]:
        """Return the command that runs in the job's sandbox; the build writes to a copy of the source.

        A link that it leaves in the source itself could mislead the agent, which restores checkpoints there.
        """
        home = next(folder for folder in writable if folder.name == "venv").parent
        copy = home / "source"
        if cwd in writable and not copy.exists():
            shutil.copytree(cwd, copy, symlinks=True)
        binds = [Bind(str(f), str(copy if f == cwd else f), read_only=False) for f in writable]
        binds += [Bind(str(f), str(f)) for f in (home / "constraints.txt", home / REQUIREMENTS) if f.exists()]
        tmp = env.get("TMPDIR", "/")
        env.update(wall.env(env) | {"HOME": tmp, "TMPDIR": tmp, "XDG_CACHE_HOME": f"{tmp}/cache"})
        return wall.wrap_build(argv, cwd if cwd in writable else Path("/"), binds)

    def _satisfied(self, requirements: Path, env: Mapping[str, str]) -> bool:
        check = [self._python, "-I", "-c", _CHECK, str(requirements)]
        return subprocess.run(check, env=dict(env), capture_output=True, timeout=120, check=False).returncode == 0

    def _run(self, argv: list[str], env: Mapping[str, str], cwd: Path, writable: list[Path]) -> None:
        env = dict(env)
        if self._wall is not None:
            command = self._confined(self._wall, argv, env, cwd, writable)
        else:
            command = wrap_build(argv, self._walls, writable)
        process = subprocess.Popen(
            command,
            env=env,
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
            raise InstallFailed(f"{self._file}: {errors or last or f'exit code {process.returncode}'}")

    def _output(self, process: subprocess.Popen[bytes]) -> Iterator[str]:
        """Yield the lines of a process as they arrive; kill it and raise `Stopped` if the job is stopped."""
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
                        self._say("[shoal] waiting for another job to build the same environment")
                    waited = True
                    if self._stopped():
                        raise Stopped from None
                    time.sleep(0.1)
            yield


def _kept(file: Path, pins: list[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that constrain pip to these versions, also in its isolated build environments."""
    file.write_text("".join(f"{line}\n" for line in pins))
    names = (
        "PIP_CONSTRAINT",
        "PIP_BUILD_CONSTRAINT",
    )  # since pip 25.3 only the second one constrains build environments
    return {name: " ".join(filter(None, [str(file), env.get(name)])) for name in names}


def _with_hint(error: str, torch: Mapping[str, str]) -> str:
    """Return pip's error, with a hint if it concerns torch."""
    return f"{error} {torch_pin.keeps(dict(torch))}" if torch and re.search(r"\btorch", error) else error


def remove_unused(cache_dir: Path, unused_s: float = KEEP_UNUSED_S) -> None:
    """Delete environments that no job has used for `unused_s` seconds."""
    for marker in (cache_dir / "envs").glob("*/ready.json"):
        with suppress(OSError):
            if time.time() - marker.stat().st_mtime > unused_s:
                marker.unlink()
                shutil.rmtree(marker.parent, ignore_errors=True)


def _open_to_readers(folder: Path) -> None:
    """Make a built environment the agent's own again, readable for the users of other sandboxes, where it is read-only."""
    for path in walk(folder):
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777
            os.chown(path, os.getuid(), os.getgid())
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))


def _ready(home: Path) -> tuple[str, Path] | None:
    """Return the kind of a complete environment and the folder it was built in, which may be another; else None."""
    marker = home / "ready.json"
    with suppress(OSError, ValueError, KeyError):
        found = json.loads(marker.read_text())
        at = home.with_name(found["at"]) if "at" in found else home
        os.utime(at / "ready.json")
        os.utime(marker)
        return str(found["kind"]), at
    return None


def _mark_ready(home: Path, kind: str, at: Path | None = None) -> tuple[str, Path]:
    aside = home / "ready.tmp"
    aside.write_text(json.dumps({"kind": kind} if at is None else {"kind": kind, "at": at.name}))
    aside.rename(home / "ready.json")
    return kind, at or home


def _layer(venv: Path, folders: list[str]) -> None:
    """Make the runtime's packages importable after the venv's own; pip treats them as installed."""
    site = next((venv / "lib").glob("python*/site-packages"))
    # addsitedir also processes the runtime's .pth files, which editable installs need.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    (site / "_shoal_runtime.pth").write_text("\n".join(lines) + "\n")


def _key(source: Path, needs: Needs, env: Mapping[str, str], source_key: str, runtime: list[object]) -> str:
    """Return the key of everything that determines an environment, except the runtime's packages."""
    # A requirement that points into the source depends on all of it, not only on its own line.
    local = any(line.startswith((".", "/", "-", "file:")) or "@ file:" in line for line in needs.lines)
    pip = sorted((k, v) for k, v in env.items() if k.startswith("PIP_"))
    own = (source / REQUIREMENTS).read_bytes().decode("utf-8", "replace") if needs.is_own else ""
    parts = [own or [needs.name, needs.lines, needs.constraints], runtime, pip, source_key if local else ""]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
