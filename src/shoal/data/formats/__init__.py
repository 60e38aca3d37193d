"""Choose the format of a dataset's files by their names."""

from __future__ import annotations

from pathlib import PurePosixPath

from shoal.core.errors import InvalidSpec
from shoal.core.names import did_you_mean
from shoal.data.formats.base import COMPRESSIONS, Block, Format
from shoal.data.source import File

__all__ = ["FORMATS", "Block", "Format", "choose"]

FORMATS = ("jsonl", "text", "csv", "parquet", "arrow", "tar", "files")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "tar",
    ".tgz": "tar",
}
_ASIDE = frozenset(
    "dataset_info.json dataset_infos.json dataset_dict.json state.json _success _metadata _common_metadata".split()
)
"""Files that describe a dataset and contain no records."""


def choose(files: list[File], wanted: str | None, what: str) -> tuple[Format, list[File]]:
    """Return the format and the files that have it.

    Raise InvalidSpec for files of several formats: guessing would drop data silently.
    """
    if wanted is not None and wanted not in FORMATS:
        raise InvalidSpec(f"There is no format {wanted!r}.{did_you_mean(wanted, FORMATS)}", hint=", ".join(FORMATS))
    shown = [f for f in files if not any(part.startswith(".") for part in f.path.split("/"))]
    if wanted:
        return make(wanted), shown
    if any(f.path == "dataset_dict.json" for f in files):
        raise InvalidSpec(f"{what} holds several splits.", hint=f"Choose one, for example: {what}/train")
    records = [f for f in shown if not _describes(f.path)] or shown
    kinds = sorted({kind_of(f.path) for f in records})
    if len(kinds) > 1:
        examples = ", ".join(next(f.path for f in records if kind_of(f.path) == kind) for kind in kinds)
        raise InvalidSpec(
            f"{what} holds files of several formats ({', '.join(kinds)}): {examples}.",
            hint=f"Choose some by a pattern, for example {what}/*.jsonl, or pass format=.",
        )
    return make(kinds[0] if kinds else "files"), records


def kind_of(path: str) -> str:
    suffixes = [s.lower() for s in PurePosixPath(path).suffixes]
    if len(suffixes) > 1 and suffixes[-1] in COMPRESSIONS and suffixes[-1] not in _SUFFIXES:
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1] if suffixes else "", "files")


def make(kind: str) -> Format:
    from shoal.data.formats import archives, lines, tables

    made: dict[str, type[Format]] = {
        "jsonl": lines.JsonLines,
        "text": lines.Lines,
        "csv": tables.Csv,
        "parquet": tables.Parquet,
        "arrow": tables.Arrow,
        "tar": archives.Tar,
        "files": archives.WholeFiles,
    }
    return made[kind]()


def _describes(path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    return name in _ASIDE or name.endswith(".md") or name.startswith(("readme", "license", "licence"))
