"""Tools for fuzzing, in an environment of their own: they need other versions of some packages than Shoal does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ENV = ROOT / ".venv-fuzz"
_PINNED = {"schemathesis": "schemathesis==4.32.5", "atheris": "atheris==3.0.0"}


def tool(name: str) -> str:
    """Return the path of a program or, for a library, of the interpreter that has it; install it first if necessary."""
    python = _ENV / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(_ENV)], check=True)
    mark = _ENV / f".{_PINNED[name]}"
    if not mark.exists():
        print(f"installing {_PINNED[name]} in {_ENV.name}", file=sys.stderr)
        subprocess.run([str(python), "-m", "pip", "install", "-q", _PINNED[name]], check=True)
        mark.touch()
    program = _ENV / "bin" / name
    return str(program if program.exists() else python)
