"""Submit → first line of user code, beside bare torchrun with the same script and two workers.

    python bench/launch.py [--repeats 7] [--sandbox S3]

Both are timed from the start of their command line program to the moment the first worker runs its first
statement, interleaved, medians compared. Target: at most 1.15 × torchrun.
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

SCRIPT = "import os, time; os.write(1, b'FIRST %r\\n' % time.time())\n"  # in one piece: the other worker writes too


def first_line(text: str) -> float:
    return min(float(line.split("FIRST ")[1]) for line in text.splitlines() if "FIRST " in line)


def torchrun(folder: Path) -> float:
    begin = time.time()
    command = [
        str(Path(sys.executable).parent / "torchrun"),
        "--nproc-per-node",
        "2",
        "--master-port",
        "29777",
        "train.py",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return first_line(done.stdout) - begin


def shoal(server, folder: Path, name: str, launcher: str) -> float:
    begin = time.time()
    done = server.cli(
        "training", "run", name, "--dir", str(folder), "--accels", "2", "--launcher", launcher, "-f", "--", "train.py"
    )
    return first_line(done.stdout) - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--sandbox", default="", help="sandbox of the jobs (job_sandbox), such as S3 of a shared server"
    )
    options = parser.parse_args()
    repeats, level = options.repeats, options.sandbox
    with tempfile.TemporaryDirectory() as root, live_server(Path(root) / "home", slots=4, job_sandbox=level) as server:
        folder = Path(root) / "code"
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        times: dict[str, list[float]] = {"torchrun": [], "shoal": [], "shoal --launcher torchrun": []}
        for i in range(repeats + 1):  # the first round only warms the disk cache
            times["torchrun"].append(torchrun(folder))
            times["shoal"].append(shoal(server, folder, f"direct-{i}", "direct"))
            times["shoal --launcher torchrun"].append(shoal(server, folder, f"torchrun-{i}", "torchrun"))
        medians = {name: statistics.median(values[1:]) for name, values in times.items()}
        for name, median in medians.items():
            shown = " ".join(f"{v:.2f}" for v in sorted(times[name][1:]))
            print(f"{name:28} median {median:.2f} s   {median / medians['torchrun']:.2f} × torchrun   ({shown})")


if __name__ == "__main__":
    main()
