"""Offline runs of Weights & Biases, converted to run directories that the importer can send. W&B itself is not needed.

A run is a folder `offline-run-…` with a file `run-ID.wandb`: a log in LevelDB's format whose records are protobuf messages. Only
the few fields used here are decoded. A conversion writes the same lines in the same order each time, so that a repeated import
sends only new ones.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.cli.run.run_dir import FACTS
from shoal.cli.run.run_files import find_runs
from shoal.core.errors import Refused
from shoal.core.records import Config, Evaluation, Finish, Step

CONVERTED = ".shoal-run"
"""Folder of the converted run, in that of W&B."""
_BLOCK, _HEADER, _IDENT = 32_768, struct.Struct("<IHB"), b":W&B"
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18
"""Numbers of the fields of a record."""
_DEEPEST = 5

Message = list[tuple[int, Any]]


def wandb_file(folder: Path) -> Path | None:
    """Return the log of an offline run in this folder; None if there is none."""
    return next(iter(sorted(folder.glob("run-*.wandb"))), None) if folder.is_dir() else None


def find_wandb_runs(folder: Path) -> list[Path]:
    """Return the folder itself if it is an offline run of W&B, else those in it or in its `wandb` folder."""
    if wandb_file(folder):
        return [folder]
    inside = [path for base in (folder, folder / "wandb") if base.is_dir() for path in base.iterdir()]
    return sorted({path.resolve() for path in inside if path.name.startswith("offline-run-") and wandb_file(path)})


def unpack_runs(folder: Path) -> list[tuple[Path, Path | None]]:
    """Return the runs in a folder: run directory, and the folder of W&B's offline run that it was converted from, or None.

    Raises NotFound if there are none.
    """
    own = find_wandb_runs(folder)
    if own and not (folder / FACTS).is_file():
        return [(convert(path), path) for path in own]
    return [(root, None) for root in find_runs(folder)]


def convert(folder: Path) -> Path:
    """Write the run directory of an offline run and return it; call it again when the run has continued.

    Raises Refused if the log is not W&B's, or if the folder cannot be written.
    """
    source = wandb_file(folder)
    if source is None:
        raise Refused(f"{folder} is not an offline run of Weights & Biases: there is no run-….wandb in it.")
    run, root = _Run(source), folder / CONVERTED
    try:
        (root / "spool").mkdir(parents=True, exist_ok=True)
        (root / "logs").mkdir(exist_ok=True)
        facts = {
            "id": f"wandb-{run.id}-{run.began:.0f}",
            "name": run.name or run.id,
            "created": datetime.fromtimestamp(run.began, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "argv": [],
            "world_size": 1,
        }
        _replace(root / "run.json", json.dumps(facts))
        _replace(root / "spool" / "rank-0.jsonl", "".join(json.dumps(line) + "\n" for line in run.lines))
        output = folder / "files" / "output.log"
        if output.is_file():
            _replace(root / "logs" / "rank-0.log", output.read_text("utf-8", "replace"))
        heard = source.stat()
        for path in root.rglob("*.*"):  # a run that wrote nothing for long is over
            os.utime(path, ns=(heard.st_atime_ns, heard.st_mtime_ns))
    except OSError as error:
        raise Refused(f"The converted run cannot be written to {root}: {error.strerror or error}.") from error
    return root


class _Run:
    """Reader of one run's log; `lines` are the lines of a spool file."""

    def __init__(self, source: Path):
        self.id, self.name, self.began = source.stem.removeprefix("run-"), "", source.stat().st_mtime
        self.lines: list[dict[str, Any]] = []
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._step, self._at = 0, 0.0
        self._logged: set[str] = set()
        for blob in read_log(source):
            for number, value in _fields(blob):
                self._read_record(number, value)

    def _read_record(self, number: int, value: Any) -> None:
        if not isinstance(value, bytes):
            return
        message = _fields(value)
        if number == _RUN:
            self._begin(message)
        elif number == _CONFIG:
            self._configure(message)
        elif number == _HISTORY:
            self._log(message)
        elif number == _SUMMARY:
            self._summary |= _items(message, 1)
        elif number == _EXIT:
            self._end(message)

    def _begin(self, message: Message) -> None:
        self.id = _text(message, 1) or self.id
        self.name = _text(message, 8) or self.name
        started = _fields(_last(message, 17, b""))
        self.began = float(_last(started, 1, 0)) + _last(started, 2, 0) / 1e9 or self.began
        self._at = self._at or self.began
        if found := _last(message, 4, b""):
            self._configure(_fields(found))

    def _configure(self, message: Message) -> None:
        told = {key: value for key, value in _items(message, 1).items() if not key.startswith("_")}
        if told:
            self._config |= told
            self._add(Config(values=dict(self._config)))

    def _log(self, message: Message) -> None:
        values = _items(message, 1)
        step = _fields(_last(message, 2, b""))
        self._step = int(values.get("_step", _last(step, 1, self._step)))
        self._at = float(values.get("_timestamp", self._at))
        numbers = dict(_numbers(values))
        if numbers:
            self._logged |= numbers.keys()
            self._add(Step(step=self._step, values=numbers))

    def _end(self, message: Message) -> None:
        rest = {name: value for name, value in _numbers(self._summary) if name not in self._logged}
        if rest:
            self._add(Evaluation(step=self._step, values=rest))
        code = _last(message, 1, 0)
        why = None if code == 0 else f"exit code {code}"
        self._add(Finish(step=self._step, status="failed" if code else "finished", why=why))

    def _add(self, record: Config | Step | Evaluation | Finish) -> None:
        self.lines.append({"t": self._at, "n": len(self.lines), "k": str(record.kind), **record.encode()})


def read_log(path: Path) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format. A record that was cut off at the end is left out."""
    data = path.read_bytes()
    if data[:4] != _IDENT:
        raise Refused(f"{path} is not a log of Weights & Biases.")
    at = 7
    parts: list[bytes] = []
    while True:
        if _BLOCK - at % _BLOCK < _HEADER.size:
            at += _BLOCK - at % _BLOCK
        if at + _HEADER.size > len(data):
            return
        _, size, kind = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if at + size > len(data) or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            return
        part, at = data[at : at + size], at + size
        parts = [part] if kind in (_FULL, _FIRST) else [*parts, part]
        if kind in (_FULL, _LAST):
            yield b"".join(parts)


def _fields(data: Any) -> Message:
    """Return number and value of each field of a protobuf message: ints, and bytes for everything with a length."""
    found: Message = []
    at = 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if kind == 0:
                value, at = _varint(data, at)
            elif kind == 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
                value, at = struct.unpack_from("<d" if kind == 1 else "<f", data, at)[0], at + size
            else:
                break
            found.append((number, value))
    except (IndexError, struct.error):
        pass  # cut off
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _last(message: Message, number: int, default: Any) -> Any:
    return next((value for found, value in reversed(message) if found == number), default)


def _text(message: Message, number: int) -> str:
    found = _last(message, number, b"")
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""


def _items(message: Message, number: int) -> dict[str, Any]:
    """Return key → value of the items in a message; keys of nested values are joined with dots, as W&B shows them."""
    found = {}
    for item in (_fields(value) for at, value in message if at == number):
        nested = [value.decode("utf-8", "replace") for at, value in item if at == 2 and isinstance(value, bytes)]
        key = _text(item, 1) or ".".join(nested)
        if key and (value := _value(item)) is not None:
            found[key] = value
    return found


def _value(item: Message) -> Any:
    if text := _text(item, 16) or _text(item, 8):
        try:
            return json.loads(text)
        except ValueError:
            return None
    for number, value in item:
        if number == 4:
            return bool(value)
        if number == 5:
            return (value >> 1) ^ -(value & 1)
        if number == 6:
            return value
    return _text(item, 7) or None


def _numbers(values: dict[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield name and value of all numbers, also those in dictionaries; W&B's own keys begin with an underscore."""
    for key, value in values.items():
        if key.startswith("_"):
            if key == "_type":
                return
            continue
        if isinstance(value, dict) and depth < _DEEPEST and "_type" not in value:
            yield from _numbers(value, f"{before}{key}.", depth + 1)
        elif value in ("NaN", "Infinity", "-Infinity"):
            yield before + key, {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[value]
        elif isinstance(value, float) and not math.isfinite(value):
            yield before + key, "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        elif isinstance(value, int | float):
            yield before + key, float(value) if isinstance(value, bool) else value


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(text)
    partial.replace(path)
