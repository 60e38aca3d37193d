"""`python -m shoal.agent LAUNCH_FILE` runs a node; `python -m shoal.agent --salvage WORK_DIR` cleans up after a dead agent."""

import sys

from shoal.agent.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
