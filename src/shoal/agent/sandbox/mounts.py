"""Provides paths such as /input: with bubblewrap mounts if it works here, else by rewriting arguments and environment.

The sandbox's root is a tmpfs with the host's top-level entries bound into it, so nothing is created on the host. With its own
pid namespace, the kernel ends every process of the job together with the agent.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from shoal.core.boot import boot_id

logger = logging.getLogger(__name__)

SETTING = "SHOAL_SANDBOX"
_PROBE_TIMEOUT_S = 20


class Mode(StrEnum):
    """Technique that provides the contract's paths to a job."""

    BWRAP_PID = "bubblewrap"
    BWRAP = "bubblewrap without a pid namespace"
    """Used on machines where /proc cannot be mounted again, as in many containers."""
    REWRITE = "rewrite"

    @property
    def paths(self) -> str:
        """The mode as shown to people (core.jobs.NodeView.paths)."""
        return "rewrite" if self is Mode.REWRITE else "bubblewrap"


class Bind(NamedTuple):
    """A host path that is visible at another path inside."""

    inside: str
    host: str
    read_only: bool = True


def choose(cache_dir: Path, setting: str | None = None) -> Mode:
    """Return the mode that works on this machine; it is tested once per boot and remembered."""
    setting = setting or os.environ.get(SETTING) or "auto"
    bwrap = None if setting == "rewrite" else find("bwrap")
    if bwrap is None:
        if setting == "bubblewrap":
            raise RuntimeError("SHOAL_SANDBOX=bubblewrap, but bwrap is not installed")
        return Mode.REWRITE
    mode = _remembered(cache_dir, bwrap) or _probe(cache_dir, bwrap)
    if mode is Mode.REWRITE and setting == "bubblewrap":
        raise RuntimeError("SHOAL_SANDBOX=bubblewrap, but bwrap does not work on this machine")
    return mode


def forget(cache_dir: Path) -> None:
    """Delete the remembered mode, which turned out to be wrong."""
    (cache_dir / "sandbox.json").unlink(missing_ok=True)


class Walls(NamedTuple):
    """Files that the code of a job must not see. In rewrite mode nothing hides them."""

    mode: Mode = Mode.REWRITE
    hide: Sequence[Path] = ()
    """Files and folders that appear empty inside the sandbox."""
    keep: Sequence[Path] = ()
    """Folders below hidden ones that stay visible and writable."""
    filter: Path | None = None
    """File with the system call filter of the job; None: no filter, and root keeps its capabilities."""


def wrap(
    argv: Sequence[str],
    mode: Mode,
    binds: Sequence[Bind],
    hide: Sequence[Path] = (),
    keep: Sequence[Path] = (),
    system_calls: Path | None = None,
) -> list[str]:
    """Return the command that runs `argv` with these mounts. The last three arguments are those of Walls."""
    if mode is Mode.REWRITE:
        return list(argv)
    args = [*_bwrap(system_calls), *_root({b.inside.split("/")[1] for b in binds})]
    if mode is Mode.BWRAP_PID:
        args += ["--die-with-parent", "--unshare-pid", "--proc", "/proc"]
    else:
        # No --die-with-parent: the worker parent must outlive the agent for the moment it takes to kill all workers.
        args += ["--bind", "/proc", "/proc"]
    args += _hidden(hide, keep)
    for bind in sorted(binds, key=lambda b: b.inside.count("/")):
        args += ["--ro-bind" if bind.read_only else "--bind", bind.host, bind.inside]
    return [*args, "--", *argv]


def wrap_build(argv: Sequence[str], walls: Walls, writable: Sequence[Path]) -> list[str]:
    """Return the command that runs a build, which executes code of a job's packages and can write to these folders only.

    It has no capabilities, because root inside could unmount what hides the server's files.
    """
    if walls.mode is Mode.REWRITE:
        return list(argv)
    args = [*_bwrap(walls.filter), *_root(set(), bind="--ro-bind"), "--die-with-parent", "--cap-drop", "ALL"]
    if walls.mode is Mode.BWRAP_PID:
        args += ["--unshare-pid", "--unshare-ipc", "--proc", "/proc"]
    else:
        args += ["--bind", "/proc", "/proc"]
    # Folders that the job may write to, such as its output, stay hidden from its packages: only what is needed is kept.
    args += _hidden(walls.hide, writable)
    for folder in writable:
        args += ["--bind", os.path.realpath(folder), os.path.realpath(folder)]
    return [*args, "--", *argv]


def _bwrap(system_calls: Path | None) -> list[str]:
    """Return the start of a bubblewrap command. With a filter, the program inside also has no capabilities.

    bubblewrap reads the filter from a descriptor, which a shell opens: that costs a millisecond, another Python ten.
    """
    if system_calls is None:
        return ["bwrap"]
    start = ["/bin/sh", "-c", 'exec 9<"$0" && exec "$@"', str(system_calls), "bwrap", "--seccomp", "9"]
    return [*start, "--cap-drop", "ALL"]


def _hidden(hide: Sequence[Path], keep: Sequence[Path]) -> list[str]:
    """Return mounts that put an empty folder or file in place of each hidden one. Links are resolved to the real path."""
    folders = sorted({Path(os.path.realpath(p)) for p in hide if p.is_dir()})
    folders = [f for f in folders if not any(f.is_relative_to(other) for other in folders if other != f)]
    kept = [Path(os.path.realpath(p)) for p in keep]
    args: list[str] = []
    for folder in folders:
        args += ["--tmpfs", str(folder)]
        for path in kept:
            if path.is_relative_to(folder) and path != folder:
                args += ["--bind", str(path), str(path)]
        args += ["--remount-ro", str(folder)]
    for file in sorted(os.path.realpath(p) for p in hide if p.exists() and not p.is_dir()):
        covered = [f for f in folders if Path(file).is_relative_to(f)]
        if not covered or any(Path(file).is_relative_to(k) for k in kept):
            args += ["--ro-bind", "/dev/null", file]
    return args


def find(program: str) -> str | None:
    """Return the path of a program on PATH, or None."""
    found = (f"{folder}/{program}" for folder in os.get_exec_path())
    return next((path for path in found if os.access(path, os.X_OK)), None)


class Rewriter:
    """Replaces contract paths by host paths wherever one begins a word: `/input/x`, `--data=/input/x`, `a:/output`."""

    def __init__(self, binds: Sequence[Bind] = ()):
        self._hosts: Mapping[str, str] = {b.inside: b.host for b in binds}
        names = "|".join(re.escape(p) for p in sorted(self._hosts, key=len, reverse=True))
        self._pattern = re.compile(rf"""(?:(?<=[\s=:,;"'\[({{@])|^)({names})(?=[/\s:,;"'\])}}]|$)""") if names else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._hosts[found[1]], text) if self._pattern else text


def _root(taken: set[str], bind: str = "--bind") -> list[str]:
    """Return binds of the host's top-level entries, except those that the contract replaces."""
    args: list[str] = []
    for entry in sorted(os.scandir("/"), key=lambda e: e.name):
        if entry.name in taken or entry.name == "proc":
            continue
        if entry.is_symlink():
            args += ["--symlink", os.readlink(entry.path), entry.path]  # noqa: PTH115
        else:
            args += ["--dev-bind" if entry.name == "dev" else bind, entry.path, entry.path]
    return args


def _remembered(cache_dir: Path, bwrap: str) -> Mode | None:
    with suppress(OSError, ValueError, KeyError):
        known = json.loads((cache_dir / "sandbox.json").read_text())
        if known["for"] == circumstances(bwrap):
            return Mode(known["mode"])
    return None


def _probe(cache_dir: Path, bwrap: str) -> Mode:
    mode = next((m for m in (Mode.BWRAP_PID, Mode.BWRAP) if _works(m)), Mode.REWRITE)
    logger.info("sandbox: %s", mode.value)
    with suppress(OSError):
        cache_dir.mkdir(parents=True, exist_ok=True)
        aside = cache_dir / f"sandbox.{os.getpid()}.tmp"
        aside.write_text(json.dumps({"for": circumstances(bwrap), "mode": mode.value}))
        aside.rename(cache_dir / "sandbox.json")
    return mode


def _works(mode: Mode) -> bool:
    # Test with a nested mount and the devices, as a real job has them.
    binds = [Bind("/input", "/usr"), Bind("/output", "/usr", read_only=False)]
    script = "test -d /input/bin && test -w /dev/null && test -r /proc/self/stat"
    try:
        done = subprocess.run(
            wrap(["/bin/sh", "-c", script], mode, binds), capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("%s: %s", mode.value, error)
        return False
    if done.returncode:
        logger.info("%s: %s", mode.value, done.stderr.decode(errors="replace").strip())
    return done.returncode == 0


def circumstances(bwrap: str) -> list[object]:
    """Return what the result of a probe depends on: the program, the boot, the user."""
    stat = Path(bwrap).stat()
    return [bwrap, stat.st_mtime_ns, boot_id(), os.getuid()]
