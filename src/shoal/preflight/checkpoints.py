"""Checkpoints: what the script saves is read back; where it saves none, one is made of what it trains."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from .models import Models
from .optimizers import Optimizers
from .trial import Trial

_LARGEST = 2 << 30
"""Bytes of what is written or read only to see whether it can be."""
_KEPT = ("/output-checkpoint", "/output")


class Checkpoints:
    def __init__(self, torch: Any, trial: Trial, models: Models, optimizers: Optimizers):
        self._trial, self._models, self._optimizers = trial, models, optimizers
        self._save, self._load = torch.save, torch.load
        torch.save = self._watched_save
        trial.at_end.append(self._judge)

    def _watched_save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        trial, is_path = self._trial, isinstance(f, str | os.PathLike)
        if not trial.is_here:
            return self._save(obj, f, *args, **kwargs)
        trial.saving = True
        made = self._save(obj, f, *args, **kwargs)
        trial.saving = False
        if is_path and trial.seen.steps:
            self._saved(os.fspath(f))
        return made

    def _saved(self, path: str) -> None:
        trial, size = self._trial, os.path.getsize(path)  # noqa: PTH202
        trial.facts["checkpoint_bytes"] = max(size, trial.facts.get("checkpoint_bytes", 0))
        trial.reach("save")
        if not self._is_kept(path):
            trial.find("kept-nowhere", f"{path} is outside of /output-checkpoint.", where=trial.here())
        if size <= _LARGEST and "load" not in trial.phases:
            try:
                self._load(path, map_location="cpu", weights_only=False)
                trial.reach("load")
            except Exception as error:
                told = f"{os.path.basename(path)} cannot be read back: {type(error).__name__}: {error}"  # noqa: PTH119
                trial.find("checkpoint", told, where=trial.here())

    def _is_kept(self, path: str) -> bool:
        real = os.path.realpath(path)
        if self._trial.own(real) is not None:
            return False
        folders = [*_KEPT, tempfile.gettempdir(), *filter(None, [self._trial.asked.output])]
        return any(real.startswith(os.path.realpath(folder) + os.sep) for folder in folders)

    def _judge(self) -> None:
        trial = self._trial
        if (size := _largest_entry(trial.asked.output)) > 0:
            # Also those made without torch.save: safetensors, a folder of shards.
            trial.facts["checkpoint_bytes"] = size
            trial.reach("save")
        if trial.seen.steps and "load" not in trial.phases and not trial.has_errors:
            self._make_one()

    def _make_one(self) -> None:
        trial = self._trial
        model = next((m for m in self._models.roots.values() if any(p.requires_grad for p in m.parameters())), None)
        needed = trial.facts.get("parameter_bytes", 0) + trial.facts.get("optimizer_bytes", 0)
        trial.facts.setdefault("checkpoint_bytes", needed)
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
                trial.find("checkpoint", f"Model and optimizer do not come back: {type(error).__name__}: {error}")
                return
            trial.facts["checkpoint_bytes"] = max(trial.facts["checkpoint_bytes"], os.path.getsize(path))  # noqa: PTH202
            trial.reach("load")


def _largest_entry(folder: str) -> int:
    """A checkpoint is a file or a folder in what is kept."""
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
