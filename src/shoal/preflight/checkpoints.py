"""Test of checkpoints: those that the script saves are read back; if it saves none, one is made of model and optimizer."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from .models import Models
from .optimizers import Optimizers
from .probe import Probe

_LARGEST = 2 << 30
"""Maximum size in bytes of a checkpoint that is written or read back as a test."""
_KEPT = ("/output-checkpoint", "/output")


class Checkpoints:
    def __init__(self, torch: Any, probe: Probe, models: Models, optimizers: Optimizers):
        self._probe, self._models, self._optimizers = probe, models, optimizers
        self._save, self._load = torch.save, torch.load
        torch.save = self._watched_save
        probe.at_end.append(self._judge)

    def _watched_save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        probe, is_path = self._probe, isinstance(f, str | os.PathLike)
        if not probe.is_here:
            return self._save(obj, f, *args, **kwargs)
        probe.saving = True
        made = self._save(obj, f, *args, **kwargs)
        probe.saving = False
        if is_path and probe.seen.steps:
            self._saved(os.fspath(f))
        return made

    def _saved(self, path: str) -> None:
        probe, size = self._probe, os.path.getsize(path)  # noqa: PTH202
        probe.facts["checkpoint_bytes"] = max(size, probe.facts.get("checkpoint_bytes", 0))
        probe.reach("save")
        if not self._is_kept(path):
            probe.find("kept-nowhere", f"{path} is outside of /output-checkpoint.", where=probe.here())
        if size <= _LARGEST and "load" not in probe.phases:
            try:
                self._load(path, map_location="cpu", weights_only=False)
                probe.reach("load")
            except Exception as error:
                told = f"{os.path.basename(path)} cannot be read back: {type(error).__name__}: {error}"  # noqa: PTH119
                probe.find("checkpoint", told, where=probe.here())

    def _is_kept(self, path: str) -> bool:
        real = os.path.realpath(path)
        if self._probe.own(real) is not None:
            return False
        folders = [*_KEPT, tempfile.gettempdir(), *filter(None, [self._probe.asked.output])]
        return any(real.startswith(os.path.realpath(folder) + os.sep) for folder in folders)

    def _judge(self) -> None:
        probe = self._probe
        if (size := _largest_entry(probe.asked.output)) > 0:
            # This includes checkpoints written without torch.save: safetensors, a folder of shards.
            probe.facts["checkpoint_bytes"] = size
            probe.reach("save")
        if probe.seen.steps and "load" not in probe.phases and not probe.has_errors:
            self._make_one()

    def _make_one(self) -> None:
        probe = self._probe
        model = next((m for m in self._models.roots.values() if any(p.requires_grad for p in m.parameters())), None)
        needed = probe.facts.get("parameter_bytes", 0) + probe.facts.get("optimizer_bytes", 0)
        probe.facts.setdefault("checkpoint_bytes", needed)
        if model is None or needed > _LARGEST:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state.pt")  # noqa: PTH118
            try:
                state = {"model": model.state_dict(), "optimizer": self._optimizers.first.state_dict()}
                self._save(state, path)
                known = self._load(path, map_location="cpu", weights_only=False)
                model.load_state_dict(known["model"])
                self._optimizers.first.load_state_dict(known["optimizer"])
            except Exception as error:
                probe.find(
                    "checkpoint", f"Model and optimizer cannot be saved and loaded: {type(error).__name__}: {error}"
                )
                return
            probe.facts["checkpoint_bytes"] = max(probe.facts["checkpoint_bytes"], os.path.getsize(path))  # noqa: PTH202
            probe.reach("load")


def _largest_entry(folder: str) -> int:
    """Return the size of the largest file or folder in the output folder; each of them is a checkpoint."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return 0
    return max((_size(entry.path) for entry in entries), default=0)


def _size(path: str) -> int:
    if not os.path.isdir(path):  # noqa: PTH112
        return os.path.getsize(path)  # noqa: PTH202
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)  # noqa: PTH118
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file))  # noqa: PTH113, PTH202
