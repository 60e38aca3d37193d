"""Hostile things to try from inside a lease's sandbox. Run with a JSON of facts; prints {probe: [succeeded, detail]}.

A probe succeeds by returning; outside, as root, all do.
"""

import json
import sys
from pathlib import Path

import calls  # noqa: F401
import files  # noqa: F401
import neighbours  # noqa: F401
import share  # noqa: F401
from hostile import FACTS, PROBES


def main():
    FACTS.update(json.loads(sys.argv[1]))
    Path(FACTS["scratch"]).mkdir(exist_ok=True)
    found = {}
    for name, function in PROBES.items():
        try:
            function()
            found[name] = [True, ""]
        except Exception as error:
            found[name] = [False, f"{type(error).__name__}: {error}"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
