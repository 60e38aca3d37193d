"""Runs many preflights, each in a fork of one process that has imported all they need: FOLDER/NAME/case.json → FOLDER/NAME/report.json."""

import json
import os
import sys
from pathlib import Path

import accelerate  # noqa: F401
import torch
import torch._dynamo
import transformers.trainer  # noqa: F401

from shoal.preflight import launch
from shoal.testing.patience import patient


def run(folder: Path) -> None:
    case = json.loads((folder / "case.json").read_text())
    (folder / "output").mkdir()
    (folder / "tmp").mkdir()
    os.chdir(folder / "code")
    os.environ |= {
        "OUTPUT_DIR": str(folder / "output"),
        "TMPDIR": str(folder / "tmp"),
        "SHOAL_SPOOL": str(folder / "spool"),
    }
    asked = {
        "report": str(folder / "report.json"),
        "output": str(folder / "output"),
        "limit_s": patient(60),
        "spare_s": 1.5,
        **case["asked"],
    }
    os.environ[launch.VARIABLE] = json.dumps(asked)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["launch.py", "train.py", *case["args"]]
    os._exit(launch.main())  # to take torch down takes longer than most of them


def main() -> None:
    torch.set_num_threads(1)
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        pid = os.fork()
        if not pid:
            run(folder)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
