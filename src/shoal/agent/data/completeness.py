"""Checks whether a checkpoint is complete and reads its step and metrics, from headers and JSON only; nothing is unpickled."""

from __future__ import annotations

import json
import math
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

from shoal.agent.data.shards import is_part, missing_shards
from shoal.agent.node.job_files import open_from_job

OWN = "shoal.json"
"""Name of the file that the SDK writes last; it lists all other files of a checkpoint."""
_MAX_JSON = 64 << 20
_MAX_HEADER = 100 << 20
_TORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_HALF_MADE = re.compile(r"(^|[._-])(tmp|temp|partial|incomplete|part)([._-]|$)|~$", re.IGNORECASE)
_TRAIN_LOSS = ("loss", "train/loss", "train_loss", "training_loss", "training/loss")
_EVAL_LOSS = (
    "eval/loss",
    "eval_loss",
    "val/loss",
    "val_loss",
    "valid_loss",
    "validation_loss",
    "validation/loss",
    "test_loss",
)
_STEP = re.compile(
    r"(?<![a-z])(?:(?:global[-_ ]?)?steps?|iter|iters|iteration|iterations)[-_=.: ]?(\d{1,15})(?!\d)"
    r"|(?<![a-z])(?:checkpoint|ckpt|chkpt)[-_=.](\d{1,15})(?=$|\.[a-z])",
    re.IGNORECASE,
)
"""Names that say a step: step-500, global_step500, epoch=3-step=500.ckpt, iter_500, and checkpoint-500 as Hugging Face has it.
Other numbers in names are epochs, sizes, versions or dates: epoch_3.pt, resnet50, run-2024-05-12."""
_LIGHTNING = re.compile(r"step=(\d{1,15})[^/]*\.ckpt(/|$)")
_LOG = re.compile(
    r"(offline-)?run-\d{8}_\d{6}-.*|debug[\w-]*\.log|(.*/)?events\.out\.tfevents\.[^/]*|version_\d+/(hparams\.yaml|metrics\.csv)"
)
"""Files that Weights & Biases, TensorBoard and Lightning's loggers write into a directory they are given."""
_TEXT = (".json", ".jsonl", ".txt", ".md", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".csv", ".tsv", ".log", ".py")


def is_half_made_name(name: str) -> bool:
    """Return whether this is a name that savers give to files they have not finished."""
    return name.startswith(".") or bool(_HALF_MADE.search(name))


def problem(root: Path, files: list[str], *, on_first_node: bool = True) -> str | None:
    """Return why these files are not a complete checkpoint (or a node's part of one), or None if no problem is found."""
    if OWN in files:
        return _own_problem(root, files)
    names = {f.rpartition("/")[2] for f in files}
    for file in files:
        if (found := _file_problem(root / file)) is not None:
            return f"{file} {found}"
    for index in (f for f in files if f.endswith(".index.json")):
        listed = _object(root / index).get("weight_map")
        shards = {shard for shard in listed.values() if isinstance(shard, str)} if isinstance(listed, dict) else set()
        if lacking := sorted(shards - names):
            return f"{index} lists {lacking[0]}, which does not exist"
    if on_first_node and is_part(files):
        return "its .metadata is not written yet"
    if names & {"optimizer.pt", "scheduler.pt"} and names & {"model.safetensors", "pytorch_model.bin"}:
        return None if "trainer_state.json" in names else "its trainer_state.json is not written yet"
    return None


def is_whole(path: Path) -> bool:
    """Return whether a file has a format that is written from start to end, and has its end: torch's or safetensors."""
    try:
        if path.suffix == ".safetensors":
            return _safetensors_problem(path) is None
        with open_from_job(path) as file:
            return path.suffix in _TORCH and file.read(4) == b"PK\x03\x04" and zipfile.is_zipfile(file)
    except OSError:
        return False


def facts(name: str, root: Path, files: list[str]) -> dict[str, Any]:
    """Return step, losses, model and version of a checkpoint, read from the files of the SDK or of Hugging Face if present."""
    state = _object(root / "trainer_state.json") if "trainer_state.json" in files else {}
    config = _object(root / "config.json") if "config.json" in files else {}
    logged = state.get("log_history")
    history = [h for h in logged if isinstance(h, dict)] if isinstance(logged, list) else []
    step = state.get("global_step")
    if not isinstance(step, int):
        match = _STEP.search(name)
        step = int(match[1] or match[2]) if match else _lightning_step(files)
    architectures = config.get("architectures")
    model = architectures[0] if isinstance(architectures, list) and architectures else None
    if OWN in files and isinstance(own := _json(root / OWN), dict):
        return _own_facts(own, step, model, config) | {"lacks": sorted(_elsewhere(own) - set(files))}
    return {
        "step": step,
        "train_loss": _last(history, "loss"),
        "eval_loss": _last(history, "eval_loss"),
        "model": model if isinstance(model, str) else None,
        "version": _text(config.get("transformers_version")),
        "inference_ready": isinstance(model, str),
        "only_logs": bool(files) and all(_LOG.fullmatch(file) for file in files),
        "only_text": all(file.lower().endswith(_TEXT) or _LOG.fullmatch(file) for file in files),
        "is_part": is_part(files),
        "lacks": missing_shards(root, files),
        "metrics": _metrics(history),
    }


def _lightning_step(files: list[str]) -> int | None:
    """Return the highest step in file names of the form that Lightning uses: epoch=1-step=20.ckpt."""
    return max((int(match[1]) for file in files if (match := _LIGHTNING.search(file))), default=None)


def _own_problem(root: Path, files: list[str]) -> str | None:
    """Return how the files differ from the list in the SDK's own file, or None."""
    own = _json(root / OWN)
    listed = own.get("files") if isinstance(own, dict) else None
    if not isinstance(listed, dict):
        return f"{OWN} is not valid"
    for name, about in listed.items():
        if name not in files:
            return f"{OWN} lists {name}, which does not exist"
        try:
            size = (root / name).stat().st_size
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if not isinstance(about, dict) or about.get("size") != size:
            return f"{name} has {size} bytes, which differs from its size in {OWN}"
    return None


def _own_facts(own: dict[str, Any], step: int | None, model: Any, config: dict[str, Any]) -> dict[str, Any]:
    written = own.get("metrics")
    metrics = {
        str(k): float(v)
        for k, v in (written.items() if isinstance(written, dict) else ())
        if _is_number(v) and not isinstance(v, bool) and math.isfinite(v)
    }
    at = own.get("step")
    return {
        "step": at if isinstance(at, int) and not isinstance(at, bool) else step,
        "train_loss": _first(metrics, _TRAIN_LOSS),
        "eval_loss": _first(metrics, _EVAL_LOSS),
        "model": model if isinstance(model, str) else None,
        "version": _text(config.get("transformers_version")),
        "inference_ready": isinstance(model, str),
        "metrics": dict(sorted(metrics.items())),
    }


def _elsewhere(own: dict[str, Any]) -> set[str]:
    """Return the parts of a sharded checkpoint that are in the folders of other nodes."""
    listed = own.get("elsewhere")
    return {name for name in listed if isinstance(name, str)} if isinstance(listed, dict) else set()


def _first(metrics: dict[str, float], names: tuple[str, ...]) -> float | None:
    lower = {k.lower().replace(" ", "_").replace("-", "_"): v for k, v in metrics.items()}
    return next((lower[name] for name in names if name in lower), None)


def _file_problem(path: Path) -> str | None:
    try:
        if path.suffix == ".safetensors":
            return _safetensors_problem(path)
        if path.suffix in _TORCH:
            with open_from_job(path) as file:
                zipped = file.read(4) == b"PK\x03\x04"
                return "is cut short" if zipped and not zipfile.is_zipfile(file) else None
        if path.suffix == ".json":
            return None if path.stat().st_size > _MAX_JSON or _json(path) is not None else "is not valid JSON yet"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _safetensors_problem(path: Path) -> str | None:
    """Compare the end of the last tensor, according to the header, with the end of the file."""
    size = path.stat().st_size
    with open_from_job(path) as file:
        length = struct.unpack("<Q", head)[0] if len(head := file.read(8)) == 8 else _MAX_HEADER
        if length >= min(_MAX_HEADER, size):
            return "is cut short"
        try:
            header = json.loads(file.read(length))
            end = max((int(t["data_offsets"][1]) for k, t in header.items() if k != "__metadata__"), default=0)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return "has a damaged header"
    return None if size == 8 + length + end else "is cut short"


def _json(path: Path) -> Any:
    try:
        if path.stat().st_size <= _MAX_JSON:
            with open_from_job(path) as file:
                return json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        pass
    return None


def _object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is none, because a job may write anything."""
    found = _json(path)
    return found if isinstance(found, dict) else {}


def _last(history: list[dict[str, Any]], key: str) -> float | None:
    """Return the newest value of a key; not every entry has it, because evaluations and training steps log separately."""
    return next((float(h[key]) for h in reversed(history) if _is_number(h.get(key))), None)


def _metrics(history: list[dict[str, Any]]) -> dict[str, float]:
    keys = {k for h in history for k, v in h.items() if _is_number(v) and k not in ("step", "epoch")}
    found = {key: _last(history, key) for key in keys}
    return {key: value for key, value in sorted(found.items()) if value is not None and value == value}


def _is_number(value: object) -> bool:
    """Return whether this is a number that a float can hold."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 1000)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
