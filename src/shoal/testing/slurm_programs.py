"""Fakes of Slurm's programs: shell scripts that read and write files, for tests of how Shoal parses their output.

A real Slurm cluster is in `shoal.testing.slurm`.
"""

from __future__ import annotations

import os
from pathlib import Path

_SCRIPTS = {
    "sinfo": """
        [ "$1" = --version ] && { echo slurm-wlm 22.05.8; exit 0; }
        cat "$STATE/hosts"
    """,
    "squeue": 'echo >>"$STATE/asked"; cat "$STATE/queue"',
    "srun": 'echo "srun $*" >>"$STATE/calls"; cat "$STATE/srun" 2>/dev/null',
    "sbatch": """
        echo "$@" >>"$STATE/calls"
        cat >"$STATE/script"
        case "$*" in *--test-only*) exit 0;; esac
        [ -e "$STATE/refuse" ] && { cat "$STATE/refuse" >&2; exit 1; }
        name=$(echo "$@" | sed 's/.*--job-name=\\([^ ]*\\).*/\\1/')
        id=$(($(wc -l <"$STATE/queue") + 1))
        echo "$id|$name|PENDING|N/A|Resources" >>"$STATE/queue"
        echo "$id;cluster"
    """,
    "scancel": """
        echo "scancel $*" >>"$STATE/calls"
        for id; do :; done
        sed -i "/^$id|/d" "$STATE/queue"
    """,
}


class SlurmPrograms:
    """Fake Slurm programs; set PATH to `path` to use them. `queue` and `hosts` set the output of squeue and sinfo."""

    def __init__(self, folder: Path):
        self.state, self._bin = folder / "state", folder / "bin"
        for place in (self.state, self._bin):
            place.mkdir(parents=True)
        for name, body in _SCRIPTS.items():
            down = (
                f'[ -e "{self.state}/down" ] && {{ echo "{name}: error: cannot reach the controller" >&2; exit 1; }}\n'
            )
            (self._bin / name).write_text(f'#!/bin/sh\nSTATE="{self.state}"\n{down}{body}\n')
            (self._bin / name).chmod(0o755)
        self.hosts("c1|127.0.0.1|main*|4|(null)|idle|none", "c2|127.0.0.1|main*|4|(null)|idle|none")
        (self.state / "queue").touch()
        (self.state / "calls").touch()

    @property
    def path(self) -> str:
        return f"{self._bin}:{os.environ.get('PATH', '')}"

    @property
    def calls(self) -> list[str]:
        """Command lines of sbatch, srun and scancel so far."""
        return (self.state / "calls").read_text().splitlines()

    @property
    def squeue_calls(self) -> int:
        """Number of answers of squeue so far."""
        file = self.state / "asked"
        return len(file.read_text()) if file.exists() else 0

    @property
    def script(self) -> str:
        """Script of the last sbatch."""
        return (self.state / "script").read_text()

    def hosts(self, *lines: str) -> None:
        (self.state / "hosts").write_text("".join(f"{line}\n" for line in lines))

    def queue(self, *lines: str) -> None:
        (self.state / "queue").write_text("".join(f"{line}\n" for line in lines))

    def down(self, is_down: bool = True) -> None:
        """Make all programs fail, as when the controller does not answer; or end that."""
        if is_down:
            (self.state / "down").touch()
        else:
            (self.state / "down").unlink(missing_ok=True)

    def srun(self, words: str) -> None:
        """Set the output of srun."""
        (self.state / "srun").write_text(words)

    def refuse(self, words: str) -> None:
        """Make sbatch refuse all jobs from now on, with this message."""
        (self.state / "refuse").write_text(words)
