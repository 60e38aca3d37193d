"""`dataset check`: read a dataset as training would, and report problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.cli.dataset.records import Records, file_kind, unreadable
from shoal.cli.dataset.splits import Samples, split_of
from shoal.cli.shared.format import plural, size
from shoal.cli.shared.output import Column, out
from shoal.cli.shared.transfer import TransferBar
from shoal.core.errors import ShoalError

if TYPE_CHECKING:
    from shoal.client import Client
    from shoal.core.artifacts import FileEntry, Manifest
    from shoal.core.datasets import DatasetView

_DESCRIBES = (".md", ".yaml", ".yml", ".toml", "info.json", "state.json", "config.json", "meta.json", "metadata.json")
"""Suffixes of files that describe the data; they may be identical in several splits."""


@dataclass(slots=True)
class Problem:
    kind: str
    """One of: empty_file, unreadable, duplicate."""
    path: str
    line: int | None
    message: str


@dataclass(slots=True)
class Findings:
    dataset: str
    files: int
    files_read: int = 0
    """Number of files whose content was read; the others were checked by name, size and hash only."""
    samples: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return asdict(self)


def check_dataset(client: Client, view: DatasetView) -> Findings:
    manifest = client.datasets.manifest(view.id)
    findings = Findings(f"{view.name}@{view.version}", len(manifest.files))
    findings.problems += [Problem("empty_file", f.path, None, "is empty") for f in manifest.files if not f.size]
    splits = {f.path: split for f in manifest.files if (split := split_of(f.path))}
    samples = Samples() if len(set(splits.values())) > 1 else None
    to_read = [f for f in manifest.files if f.size and file_kind(f.path)]
    with TransferBar("Checking", sum(f.size for f in to_read)) as bar:
        for file in to_read:
            _read(client, file, findings, samples, splits.get(file.path))
            bar.add(file.size)
    if samples is not None:
        _duplicates(manifest, splits, samples, findings)
        findings.samples = samples.count
    return findings


def print_findings(view: DatasetView, findings: Findings) -> None:
    for note in findings.notes:
        out.dim(note)
    if findings.problems:
        columns = [
            Column("PROBLEM", lambda p: p.kind.replace("_", " ")),
            Column("FILE", lambda p: p.path, is_text=True),
            Column("LINE", lambda p: p.line, is_right=True, rank=1),
            Column("WHAT", lambda p: p.message, is_text=True),
        ]
        out.table(findings.problems, columns)
    looked = f"{plural(findings.files, 'file')}, {size(view.size)}, {plural(findings.files_read, 'file')} read"
    found = plural(len(findings.problems), "problem") if findings.problems else "no problems"
    out.info(f"{findings.dataset}: {found} ({looked}).")


def _read(client: Client, file: FileEntry, findings: Findings, samples: Samples | None, split: str | None) -> None:
    """Read one file until its first problem, where training would fail too."""
    findings.files_read += 1
    records = Records(file.path)
    try:
        with client.datasets.open(file) as stream:
            for line, record in records.read(stream):
                if samples is not None and split is not None and record:
                    samples.add(split, file.path, line, record)
    except ShoalError as error:
        findings.problems.append(Problem("unreadable", file.path, None, error.message))
    except Exception as error:  # zlib, zipfile, tarfile, json, csv and pyarrow have no common class for "damaged"
        findings.problems.append(Problem("unreadable", file.path, *unreadable(error, records)))
    for note in records.notes:
        if note not in findings.notes:
            findings.notes.append(note)


def _duplicates(manifest: Manifest, splits: dict[str, str], samples: Samples, findings: Findings) -> None:
    for found in samples.duplicates():
        about = "about " if found.is_estimate else ""
        message = (
            f"{about}{plural(found.count, 'sample')} of {found.first_split} also in {found.split}, "
            f"such as line {found.first_line} of {found.first_path}"
        )
        findings.problems.append(Problem("duplicate", found.path, found.line, message))
    findings.problems += _same_files(manifest, splits)


def _same_files(manifest: Manifest, splits: dict[str, str]) -> Iterator[Problem]:
    """Yield files (single samples or whole shards) with identical content in two splits."""
    seen: dict[tuple[str, ...], str] = {}
    for file in manifest.files:
        path, split = file.path, splits.get(file.path)
        name = path.rpartition("/")[2]
        if split is None or not file.size or name.startswith(".") or path.lower().endswith(_DESCRIBES):
            continue
        if Records(path).has_lines:
            continue  # compared line by line already
        first = seen.setdefault(tuple(c.hash for c in file.chunks), path)
        if splits[first] != split:
            yield Problem("duplicate", path, None, f"in {split}, is the same file as {first} in {splits[first]}")
