"""The file tree inside a lease's sandbox: programs, the interpreter and a few files in /etc, nothing else of the machine."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import shoal
from shoal.agent.sandbox.mounts import Bind

_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = (
    "alternatives ssl ca-certificates pki crypto-policies ld.so.cache ld.so.conf ld.so.conf.d localtime mime.types bash.bashrc bash_completion.d "
    "profile profile.d inputrc terminfo magic services protocols OpenCL vulkan ssh/moduli"
).split()
_MADE = ("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf", "hostname")


def binds(folder: Path, python: str) -> list[Bind]:
    """Return the read-only binds of the sandbox. `folder` is that of `write_etc`."""
    found = [Bind("/usr", "/usr")]
    found += [
        Bind(f"/{name}", f"/{name}") for name in _TOP if Path("/", name).is_dir() and not Path("/", name).is_symlink()
    ]
    found += [Bind(f"/etc/{name}", f"/etc/{name}") for name in _ETC if Path("/etc", name).exists()]
    found += [Bind(f"/etc/{name}", str(folder / "etc" / name)) for name in _MADE]
    return found + [
        Bind(path, path) for path in _outermost([*_interpreter(python), str(Path(shoal.__file__).parents[1])])
    ]


def job_binds(folder: Path) -> list[Bind]:
    """Return the read-only binds of a job's sandbox: those of a lease, and software in /opt."""
    return [*binds(folder, sys.executable), *([Bind("/opt", "/opt")] if Path("/opt").is_dir() else [])]


def interpreter_folders(python: str) -> list[str]:
    """Return the folders outside /usr that an interpreter needs to run."""
    return _outermost(_interpreter(python))


def links() -> list[str]:
    """Return bubblewrap arguments for top-level symbolic links of the system, such as /bin to /usr/bin."""
    tops = [Path("/", name) for name in _TOP]
    return [word for top in tops if top.is_symlink() for word in ("--symlink", os.readlink(top), str(top))]  # noqa: PTH115


def reach(binds: list[Bind], home: str) -> dict[str, object]:
    """Return the paths that Landlock allows to read and to write; host paths, since nothing can be mounted."""
    read = [b.host for b in binds if b.read_only] + [f"/{name}" for name in _TOP]
    write = [b.host for b in binds if not b.read_only] + [
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        "/dev/tty",
        "/dev/ptmx",
        "/dev/pts",
    ]
    return {"home": home, "read": [*read, "/dev/urandom", "/dev/random", "/proc/self"], "write": write}


def write_etc(folder: Path, name: str, user: str, uid: int, home: str, hosts: Sequence[str] = ()) -> None:
    """Write the files in /etc that define user, group and host names. `hosts` are further names of the loopback address."""
    etc = folder / "etc"
    etc.mkdir(exist_ok=True, mode=0o755)
    host = host_name(name)
    texts = {
        "passwd": f"root:x:0:0::/nonexistent:/usr/sbin/nologin\n{user}:x:{uid}:{uid}::{home}:/bin/bash\n",
        "group": f"root:x:0:\n{user}:x:{uid}:\n",
        "hosts": f"{' '.join(['127.0.0.1 localhost', host, *hosts])}\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "resolv.conf": "",
        "hostname": f"{host}\n",
    }
    for file, text in texts.items():
        (etc / file).write_text(text)
        (etc / file).chmod(0o644)


def host_name(name: str) -> str:
    return re.sub(r"[^a-z0-9-]", "-", name.lower())[:60].strip("-") or "lease"


def _interpreter(python: str) -> list[str]:
    """Return the folders that Python needs to run: ours, and the job's if that is another."""
    own = [sys.prefix, sys.base_prefix, sys.exec_prefix]
    other = Path(python).parent.parent
    return own + ([str(other)] if other != Path(sys.prefix) else [])


def _outermost(paths: list[str]) -> list[str]:
    """Return the paths that are not inside /usr or inside another of them."""
    found = dict.fromkeys(os.path.abspath(p) for p in paths)  # noqa: PTH100
    others = [*found, "/usr"]
    return [
        p for p in found if not any(p != other and Path(p).is_relative_to(other) for other in others) and p != "/usr"
    ]
