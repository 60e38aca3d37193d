"""Ranks whose script does not use torch: the thread that agrees on stops has no group to ask, and must not import torch."""

import os
import subprocess
import sys

from shoal.testing.patience import patient

SCRIPT = """
import sys, shoal
run = shoal.init()
for step in range(3):
    run.step(loss=1.0)
run.finish()
print("torch" in sys.modules)
"""


def test_a_rank_without_torch_does_not_import_it_in_the_background(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    env |= {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "SHOAL_SPOOL": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=patient(60)
    )
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr
