"""A swarm's state as a folder of model.safetensors, outer.safetensors and swarm.json.

A folder is written completely or not at all. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from shoal.core.durable import replace_folder, sync
from shoal.core.errors import Corrupt
from shoal.swarm.averaging.wire import State, state_hash
from shoal.swarm.outer import MODEL

_FILES = {MODEL: "model.safetensors", "outer/": "outer.safetensors"}
"""Prefix of a tensor's name → file. Names in the file do not have the prefix."""
_INDEX = "swarm.json"


def write(folder: Path, state: State, **more: Any) -> Path:
    """Write a state and return its folder. `more` goes into swarm.json beside round, samples, loss and hash.

    The files are written to a temporary folder next to it and synced to disk; then the two change places. A crash at any
    moment leaves the old state or the new one.
    """
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        for start, name in _FILES.items():
            found = zip(state.names, state.tensors, strict=True)
            # safetensors refuses tensors that share memory, as tied parameters do.
            own = {n.removeprefix(start): t.detach().clone().contiguous() for n, t in found if n.startswith(start)}
            save_file(own, aside / name)
            sync(aside / name)
        index = {"round": state.round, "samples": state.samples, "loss": state.loss, "hash": state.hash}
        (aside / _INDEX).write_text(json.dumps({**index, "names": state.names, **more}))
        sync(aside / _INDEX)
        sync(aside)
        replace_folder(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def read(folder: Path) -> State:
    """Return the state in a folder; raise Corrupt if it is incomplete or its tensors do not match its hash."""
    try:
        index = json.loads((folder / _INDEX).read_bytes())
        found = {start + n: t for start, file in _FILES.items() for n, t in load_file(folder / file).items()}
        names = [str(name) for name in index["names"]]
        tensors = [found[name] for name in names]
        state = State(int(index["round"]), int(index["samples"]), index["loss"], names, tensors, str(index["hash"]))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise Corrupt(f"{folder} is not a readable swarm state: {error}", hint="shoal swarm checkpoints") from error
    if state_hash(names, tensors) != state.hash:
        raise Corrupt(
            f"The state in {folder} is damaged: its tensors do not match its hash.", hint="shoal swarm checkpoints"
        )
    return state
