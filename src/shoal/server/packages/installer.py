"""Program that installs Shoal from a server with a private CA; `core.install` has the line that fetches and runs it.

The server sends this file as it is, so it uses the standard library only. The private CA was checked by its fingerprint before
this code ran. pip gets it together with the CAs it trusts anyway, because packages may be needed from elsewhere, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

VERSION = ""
"""Version of the server; filled in when this file is sent."""
PACKAGE = "shoal-train"
FOLDER = "~/.local/share/shoal/venv"
BIN = "~/.local/bin"


def main(arguments: Sequence[str], ca: str) -> int:
    server, _fingerprint, *more = arguments
    code = more[more.index("--join") + 1] if "--join" in more else ""
    packages = [word for word in more if word not in ("--join", code)]
    if sys.version_info < (3, 11):  # noqa: UP036  any interpreter may run this
        return _fail(f"Shoal needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable}).")
    python = own_environment()
    wanted = packages if any(word.startswith(PACKAGE) for word in packages) else [PACKAGE, *packages]
    wanted = [f"{word}=={VERSION}" if word.startswith("shoal-") and VERSION else word for word in wanted]
    print(f"Installing {' '.join(wanted)} from {server} into {python.parent.parent} …", flush=True)
    if not install(python, server, ca, wanted):
        return 1
    shoal = python.parent / "shoal"
    shown = link(shoal)
    print(f"Installed: {shown}", flush=True)
    fingerprint = f"sha256:{_fingerprint}"
    if code:
        os.execv(shoal, [str(shoal), "signup", "--invitation", f"{server}/invite/{code}#{fingerprint}"])  # noqa: S606
    print(f"Sign in: {shown} login --url {server} --fingerprint {fingerprint}")
    return 0


def own_environment() -> Path:
    """Return the Python of the active environment, or of a new one: the system's Python is not to be changed."""
    if sys.prefix != sys.base_prefix or os.environ.get("CONDA_PREFIX") == sys.prefix:
        return Path(sys.executable)
    folder = Path(FOLDER).expanduser()
    if not (folder / "bin" / "python").exists():
        try:
            venv.create(folder, with_pip=True)
        except (OSError, subprocess.CalledProcessError, SystemExit) as error:
            sys.exit(f"error: no environment could be made in {folder}: {error}\n  hint: apt install python3-venv")
    return folder / "bin" / "python"


def install(python: Path, server: str, ca: str, wanted: Sequence[str]) -> bool:
    """Let pip take everything from the server, or what it does not have for this Python from the usual index."""
    pip = [str(python), "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode != 0:
        subprocess.run([str(python), "-m", "ensurepip", "-q"], capture_output=True)
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "ca.pem"
        bundle.write_text(f"{_known_cas(python)}\n{ca}")
        line = [*pip, "install", "-q", "--disable-pip-version-check", "--cert", str(bundle)]
        index = f"{server}/simple/"
        # An index elsewhere is asked only when needed: it may not be reachable, and pip would prefer its newer versions.
        first = subprocess.run([*line, "--index-url", index, *wanted], capture_output=True, text=True)
        if first.returncode == 0:
            return True
        print("The server does not have all packages for this Python; taking those from the usual index.", flush=True)
        if subprocess.run([*line, "--extra-index-url", index, *wanted]).returncode == 0:
            return True
    print(first.stderr.strip(), file=sys.stderr)
    return False


def link(shoal: Path) -> str:
    """Return how to call the command: by its name if it is found in PATH, else by its path."""
    if shoal.parent.parent != Path(FOLDER).expanduser():
        return "shoal"
    place = Path(BIN).expanduser() / "shoal"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink() or not place.exists():
            place.unlink(missing_ok=True)
            place.symlink_to(shoal)
    except OSError:
        return str(shoal)
    on_path = str(place.parent) in os.environ.get("PATH", "").split(os.pathsep)
    return "shoal" if on_path else str(place)


def _known_cas(python: Path) -> str:
    found = subprocess.run(
        [str(python), "-c", "import pip._vendor.certifi as c; print(c.where())"], capture_output=True, text=True
    )
    path = Path(found.stdout.strip() or "/etc/ssl/certs/ca-certificates.crt")
    return path.read_text() if path.is_file() else ""


def _fail(text: str) -> int:
    print(f"error: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], globals()["ca"]))
