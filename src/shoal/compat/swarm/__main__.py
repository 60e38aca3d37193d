"""Run a script that imports hivemind before NetmindMixins: `python -m shoal.compat.swarm run_trainer.py …`."""

import runpy
import sys
from pathlib import Path

from shoal.compat.swarm.import_hooks import install

if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
    sys.exit("script not found; usage: python -m shoal.compat.swarm run_trainer.py --initial_peers …")
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
install()
runpy.run_path(sys.argv[0], run_name="__main__")
