"""Start of a script for the replay of one step: choice of the capsule, command line, folder and environment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.agent.data.bug_capsules import ABOUT, FOLDER, capsules_in
from shoal.agent.workers import runtime
from shoal.cli.shared.output import out
from shoal.core.errors import NotFound, UsageError

VARIABLE, PDB, RESULT = "SHOAL_REPLAY", "SHOAL_REPLAY_PDB", "SHOAL_REPLAY_RESULT"
_OF_A_WORKER = re.compile(
    r"RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_\w+|ROLE_\w+|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|OUTPUT_DIR"
    r"|SHOAL_(SPOOL|RESUME_FROM|JOB_ID|JOB_NAME|JOB_TOKEN|ATTEMPT|ATTEMPT_ID|NODE|VERIFY|REPLAY\w*)"
)


def find_capsule(folder: Path, *, step: int | None = None, rank: int | None = None) -> Path:
    """Return the folder itself if it is a capsule, else the newest capsule of the run directory."""
    if (folder / ABOUT).is_file():
        return folder
    if not folder.is_dir():
        raise NotFound(f"There is no folder {folder}.")
    places = (folder, folder / FOLDER, folder / "checkpoints" / FOLDER)
    known = [(about(path), path) for place in places for path in capsules_in(place)]
    found = [(a, p) for a, p in known if step in (None, a["step"]) and rank in (None, a["rank"])]
    if not found:
        told = ", ".join(f"step {a['step']} of rank {a['rank']}" for a, _ in known)
        raise NotFound(
            f"There is no such failed step in {folder}." + (f" Failed steps: {told}." if told else ""),
            hint="Trainer.fit() saves failed steps in the run's directory, under checkpoints/bug.",
        )
    return max(found, key=lambda one: (one[0]["at"], -one[0]["rank"]))[1]


def about(capsule: Path) -> dict[str, Any]:
    try:
        found = json.loads((capsule / ABOUT).read_bytes())
        if isinstance(found, dict) and {"step", "rank", "entry", "at", "error"} <= found.keys():
            return found
        problem = "it was not written by Shoal"
    except (OSError, ValueError) as error:
        problem = str(error)
    raise UsageError(f"{capsule / ABOUT} cannot be read: {problem}.")


@dataclass(slots=True)
class Again:
    """Replay of one capsule."""

    capsule: Path
    args: Sequence[str] = ()
    debug: bool = False
    code: Path | None = None
    """Folder to run in; None for the current folder, or the one where the run was started."""
    entry: Sequence[str] = ()
    """The job's command line, as it was submitted."""
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> int:
        """Run the step again; return 1 if it failed again, 0 if not."""
        known = about(self.capsule)
        words = self._words(known)
        folder = self.code or _folder_of(words, known)
        with tempfile.TemporaryDirectory(prefix="shoal-replay-") as scratch:
            result = Path(scratch) / "result.json"
            code = self._call(words, folder, result)
            told = json.loads(result.read_bytes()) if result.is_file() else None
        return self._report(known, told, code)

    def _words(self, known: dict[str, Any]) -> list[str]:
        """Return the script (or `-m` and a module) and its arguments."""
        words = [str(w) for w in known["entry"]]
        if self.entry and self.code is not None:
            command = runtime.command(list(self.entry), sys.executable, self.code)
            words = command.argv[2:] if command.per_rank else words
        if not words or words[0] == "-c":
            raise UsageError(
                "The script of this run was not a file (python -c or interactive), so it cannot be run again."
            )
        head = 2 if words[0] == "-m" else 1
        return [*words[:head], *self.args] if self.args else words

    def _call(self, words: list[str], folder: Path, result: Path) -> int:
        host = {k: v for k, v in os.environ.items() if not _OF_A_WORKER.fullmatch(k)}
        own = {VARIABLE: str(self.capsule.resolve()), RESULT: str(result), PDB: "1" if self.debug else ""}
        env = runtime.merge(host, {}, dict(self.env), own, str)
        # Ctrl-C goes to the script or the debugger; this process must not die of it.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            done = subprocess.run(
                [sys.executable, "-u", *words], cwd=folder, env=env, stdout=2 if out.json else None, check=False
            )
        finally:
            signal.signal(signal.SIGINT, before)
        return done.returncode

    def _report(self, known: dict[str, Any], told: dict[str, Any] | None, code: int) -> int:
        if told is None:
            raise UsageError(
                f"The script ended with exit code {code} before it reached the step."
                if code
                else "The script ended without reaching the step.",
                hint="Only steps of Trainer.fit() can be replayed. Script arguments go after `--`.",
            )
        if out.json:
            first = {"type": known["error"]["type"], "message": known["error"]["message"]}
            out.emit({"capsule": str(self.capsule), **told, "first_error": first})
        return 0 if told["outcome"] == "not again" else 1


def _folder_of(words: list[str], known: dict[str, Any]) -> Path:
    """Return the current folder if it contains the script, else the folder where the script was run."""
    name = words[1].replace(".", "/") if words[0] == "-m" else words[0]
    endings = (".py", "/__main__.py", "/__init__.py") if words[0] == "-m" else ("",)
    places = [Path.cwd(), Path(str(known.get("cwd") or "."))]
    for place in places:
        if any((place / f"{name}{ending}").is_file() for ending in endings):
            return place
    if words[0] == "-m":
        return Path.cwd()  # an installed module
    raise NotFound(
        f"{words[0]} is neither in the current folder nor in {places[1]}.",
        hint="Change to the folder of the code first: cd FOLDER",
    )
