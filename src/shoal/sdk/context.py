"""Context of this process: its rank among the workers, its job, and the directories it may write to.

On the platform and under `shoal run` all of it comes from the environment. In a plain `python train.py` or torchrun, the
run directory is named here and created only when there is something to write.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import UsageError

RUNS = "shoal-runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Rank, job and directories of this process. They do not change while it runs."""

    name: str
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node: int = 0
    """Index of this node in the attempt."""
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    attempt: int = 1
    on_platform: bool = False
    """True if an agent or `shoal run` created the directories and collects their contents."""
    dir: Path
    """Run directory."""
    spool_dir: Path
    output_dir: Path
    """Directory of the checkpoints."""
    resume_from: Path | None = None
    """Checkpoint that the platform wants the run to resume from; read-only."""
    emulate_cuda: bool = False

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def make_dirs(self) -> None:
        """Create the run directory; outside the platform rank 0 also writes run.json. Safe to call again."""
        self.spool_dir.mkdir(parents=True, exist_ok=True)
        facts = self.dir / "run.json"
        if self.on_platform or not self.is_main or facts.exists():
            return
        from shoal import __version__

        about = {
            "id": secrets.token_hex(12),
            "name": self.name,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "argv": sys.argv,
            "world_size": self.world_size,
            "shoal": __version__,
        }
        partial = facts.with_name(".run.json.tmp")
        partial.write_text(json.dumps(about, indent=1) + "\n")
        partial.replace(facts)


def read_context(
    name: str | None = None, dir: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None
) -> Context:
    """Return the context of this process. `name` and `dir` are ignored where the platform sets them."""
    env = os.environ if env is None else env
    rank, world_size = _number(env, "RANK", 0), _number(env, "WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise UsageError(f"RANK={rank} does not fit WORLD_SIZE={world_size}")
    spool, output = env.get("SHOAL_SPOOL"), env.get("OUTPUT_DIR")
    name = env.get("SHOAL_JOB_NAME") or name or _script_name()
    if spool:
        run_dir, spool_dir = Path(spool).parent, Path(spool)
    else:
        run_dir = Path(dir) if dir is not None else Path(RUNS) / _run_name(name, world_size, env)
        run_dir = run_dir.absolute()
        spool_dir = run_dir / "spool"
    resume_from = env.get("SHOAL_RESUME_FROM")
    return Context(
        name=name,
        rank=rank,
        local_rank=_number(env, "LOCAL_RANK", rank if world_size > 1 else 0),
        world_size=world_size,
        local_world_size=_number(env, "LOCAL_WORLD_SIZE", world_size),
        node=_number(env, "GROUP_RANK", 0),
        master_addr=env.get("MASTER_ADDR"),
        master_port=_number(env, "MASTER_PORT", 0) or None,
        job_id=env.get("SHOAL_JOB_ID"),
        attempt=_number(env, "SHOAL_ATTEMPT", 1),
        on_platform=bool(spool),
        dir=run_dir,
        spool_dir=spool_dir,
        # Without SHOAL_SPOOL, OUTPUT_DIR belongs to another program and is not used.
        output_dir=Path(output) if spool and output else run_dir / "checkpoints",
        resume_from=Path(resume_from) if resume_from else None,
        emulate_cuda=env.get("SHOAL_EMULATE_CUDA") == "1",
    )


def _number(env: Mapping[str, str], key: str, default: int) -> int:
    text = env.get(key, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{key}={text!r} in the environment is not a number") from None


def _script_name() -> str:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-", "-c", "-m") else ""
    return script if script and script != "__main__" else "run"


def _run_name(name: str, world_size: int, env: Mapping[str, str]) -> str:
    """Return the name of the run directory.

    Workers of one launcher derive the same name without communication: they share their parent and its start time.
    """
    started, tail = time.time(), secrets.token_hex(2)
    if world_size > 1:
        parent = os.getppid()
        started = _started_at(parent)
        key = f"{parent} {started} {env.get('MASTER_PORT', '')} {env.get('TORCHELASTIC_RESTART_COUNT', '')}"
        tail = hashlib.blake2b(key.encode(), digest_size=2).hexdigest()
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:63] or "run"
    return f"{safe}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(started))}-{tail}"


def _started_at(pid: int) -> float:
    """Return the Unix time at which a process started, the same in every caller; 0 if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, IndexError, ValueError):
        return 0.0
