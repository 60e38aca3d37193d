"""A swarm's state as a folder: model.safetensors, outer.safetensors and swarm.json. Whole or not there; never pickled."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from shoal.core.durable import sync
from shoal.core.errors import Corrupt
from shoal.swarm.outer import MODEL
from shoal.swarm.wire import State, state_hash

_FILES = {MODEL: "model.safetensors", "outer/": "outer.safetensors"}
"""By how names of tensors begin; the two files hold the rest of the name."""
_INDEX = "swarm.json"


def write(folder: Path, state: State, **more: Any) -> Path:
    """Aside, to the disk, then renamed; `more` goes into swarm.json beside round, samples, loss and hash."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        for start, name in _FILES.items():
            found = zip(state.names, state.tensors, strict=True)
            # Copies, because tied parameters share memory, which safetensors refuses.
            own = {n.removeprefix(start): t.detach().clone().contiguous() for n, t in found if n.startswith(start)}
            save_file(own, aside / name)
            sync(aside / name)
        index = {"round": state.round, "samples": state.samples, "loss": state.loss, "hash": state.hash}
        (aside / _INDEX).write_text(json.dumps({**index, "names": state.names, **more}))
        sync(aside / _INDEX)
        sync(aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.replace(folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def read(folder: Path) -> State:
    """Corrupt, if its tensors are not those it was written with."""
    try:
        index = json.loads((folder / _INDEX).read_bytes())
        found = {start + n: t for start, file in _FILES.items() for n, t in load_file(folder / file).items()}
        names = [str(name) for name in index["names"]]
        tensors = [found[name] for name in names]
        state = State(int(index["round"]), int(index["samples"]), index["loss"], names, tensors, str(index["hash"]))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise Corrupt(
            f"{folder} does not hold the state of a swarm: {error}", hint="shoal swarm checkpoints"
        ) from error
    if state_hash(names, tensors) != state.hash:
        raise Corrupt(
            f"The state in {folder} is damaged: its tensors do not match its hash.", hint="shoal swarm checkpoints"
        )
    return state
