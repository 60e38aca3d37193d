"""Searches with atheris for input that makes a decoder fail: `./scripts/soak --decoders SEED [--runs N] [--only NAME]`.

Each decoder gets N inputs, changed step by step towards code that was not reached before. What is found is saved as a file
`.soak/decoder-NAME-*`, with which the decoder can be called again: `./scripts/soak --decoders SEED --only NAME --input FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from fuzzing.tools import ROOT, tool

NAMES = ("archive", "header", "checkpoint", "record", "frames")
_WORKER = """
import sys, atheris
with atheris.instrument_imports(include=["shoal.store", "shoal.agent.data", "shoal.sdk.saving", "shoal.server.metrics", "shoal.server.jobs"]):
    from fuzzing.decoders import DECODERS
atheris.Setup(sys.argv[:1] + sys.argv[2:], DECODERS[sys.argv[1]].run)
atheris.Fuzz()
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./scripts/soak --decoders", description="Search for input that makes a decoder fail."
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs for each decoder (default: 1,000,000)")
    parser.add_argument("--only", choices=NAMES, help="only this decoder")
    parser.add_argument("--input", type=Path, help="call the decoder once with this file")
    parser.add_argument("--results", type=Path, default=Path(".soak"))
    options = parser.parse_args()
    if options.input:
        from fuzzing.decoders import DECODERS, forget

        DECODERS[options.only or NAMES[0]].run(options.input.read_bytes())
        forget()
        return 0
    options.results.mkdir(exist_ok=True)
    failed = [name for name in NAMES if options.only in (None, name) and not search(name, options)]
    return 1 if failed else 0


def search(name: str, options: argparse.Namespace) -> bool:
    """Return whether nothing was found; write what was run to the folder of results."""
    from fuzzing.decoders import DECODERS

    results, began = options.results.absolute(), time.monotonic()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  most decoders read files
    with tempfile.TemporaryDirectory(prefix="shoal-fuzz-", dir=memory) as folder:
        for number, seed in enumerate(DECODERS[name].seeds()):
            Path(folder, str(number)).write_bytes(seed)
        paths = [str(ROOT / "src"), str(ROOT / "scripts"), sysconfig.get_path("purelib")]
        limits = [
            f"-runs={options.runs}",
            f"-seed={options.seed}",
            "-max_len=4096",
            "-timeout=20",
            "-rss_limit_mb=2048",
        ]
        done = subprocess.run(
            [tool("atheris"), "-c", _WORKER, name, *limits, f"-artifact_prefix={results}/decoder-{name}-", "-print_final_stats=1", folder],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": folder},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )  # fmt: skip
    told = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stdout)
    runs, is_fine = int(told[1]) if told else 0, done.returncode == 0
    seconds = time.monotonic() - began
    about = {"decoder": name, "seed": options.seed, "runs": runs, "failed": not is_fine, "seconds": round(seconds, 1)}
    (results / f"decoder-{name}-{options.seed}.json").write_text(json.dumps(about))
    print(f"{name}: {runs:,} inputs in {seconds:.0f} s, {'nothing found' if is_fine else 'FAILED'}", flush=True)
    if not is_fine:
        print(done.stdout[-4000:], file=sys.stderr)
    return is_fine


if __name__ == "__main__":
    sys.exit(main())
