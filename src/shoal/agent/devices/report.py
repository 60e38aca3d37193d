"""Program that prints this machine's accelerators as one JSON line, for a server whose pool the machine joins.

usage: python -m shoal.agent.devices.report [ROOT]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from shoal.agent.devices import inventory

TIMEOUT_S = 30.0
"""Seconds for which a driver is waited for. Nothing else happens meanwhile, so it may be slow."""


def main(args: list[str]) -> int:
    found = inventory.scan(Path(args[0] if args else "/"), timeout_s=TIMEOUT_S)
    print(json.dumps(found.to_json()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
