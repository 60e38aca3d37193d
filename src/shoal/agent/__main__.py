"""Runs a node (`python -m shoal.agent LAUNCH_FILE`), or cleans up after a dead agent (`… --salvage WORK_DIR`)."""

import sys

from shoal.agent.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
