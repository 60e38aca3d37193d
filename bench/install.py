"""Packages and start times of `pip install shoal-train`, beside a bare interpreter.

    python bench/install.py [--repeats 9]

pip installs from a server's own index into a new environment. The start times are those of that environment, interleaved,
minima and medians. Targets: at most 30 packages, `import shoal` within 50 ms of a bare interpreter, `shoal --help` within 0.3 s.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from shoal.testing.live import live_server


def install(folder: Path, index: str) -> tuple[int, int, float]:
    """Return the number of packages, their size in bytes and the seconds pip took."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    begin = time.perf_counter()
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-q",
        "--no-cache-dir",
        "--disable-pip-version-check",
    ]
    alone = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    subprocess.run([*pip, "--index-url", index, "shoal-train"], check=True, env=alone)
    took = time.perf_counter() - begin
    site = next(folder.glob("lib/python*/site-packages"))
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    return len(list(site.glob("*.dist-info"))), size, took


def seconds(command: list[str], env: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "venv"
        with live_server(Path(root) / "home", slots=0, warm=False) as server, server.client() as client:
            packages, size, took = install(folder, f"{client.url}/simple/")
        print(f"packages {packages} (target ≤ 30), {size / 1e6:.0f} MB on disk, pip {took:.1f} s")
        python, shoal = str(folder / "bin" / "python"), str(folder / "bin" / "shoal")
        commands = {
            "python -c pass": [python, "-c", "pass"],
            "import shoal": [python, "-c", "import shoal"],
            "shoal --help": [shoal, "--help"],
        }
        env = {"HOME": root, "PATH": os.environ["PATH"], "COLUMNS": "80"}
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(repeats + 1):  # the first round compiles
            for name, command in commands.items():
                taken[name].append(seconds(command, env))
        bare = min(taken["python -c pass"][1:])
        for name, values in taken.items():
            least, middle = min(values[1:]), statistics.median(values[1:])
            print(f"{name:15} min {1000 * least:4.0f} ms, median {1000 * middle:4.0f} ms, {least / bare:4.1f} × bare")


if __name__ == "__main__":
    main()
