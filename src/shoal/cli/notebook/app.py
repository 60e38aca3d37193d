"""`shoal notebook`: conversion of notebooks to scripts that run as jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.cli.notebook.source import convert_file, print_receipt, summary
from shoal.cli.shared.format import plural
from shoal.cli.shared.output import out
from shoal.cli.shared.session import connect
from shoal.core.errors import Refused

app = App(name="notebook")
_WRITTEN = ("as a script. The conversion of each cell", "as a script. What became of each cell")
"""Words at the beginning of converted scripts, now and in version 0.1."""


@app.command(sort_key=0)
def convert(
    file: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    entry_cell: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
) -> None:
    """Convert a notebook to a script and show how each cell was converted.

    Nothing is run, and no server is needed. `training run --notebook` converts
    in the same way.

    For example:

      shoal notebook convert train.ipynb
      shoal notebook convert train.ipynb -o train/
      shoal notebook convert train.ipynb --entry-cell 2-9 --json

    Parameters
    ----------
    file
        The notebook file.
    output
        Folder for the script, its requirements.txt and the receipt (default: write nothing).
    entry_cell
        Convert only these cells, in this order: 3, 2-7, 4-, or the name of a tag.
    """
    made = convert_file(file, entry_cell)
    if output is not None:
        _write(made.files(), output)
    out.show(made.receipt, lambda: print_receipt(made.receipt))
    out.info(f"{file.name}: {summary(made.receipt)}.")
    if output is not None:
        out.dim(f"  python {output / made.script_name}")
    else:
        out.dim(f"  {out.prog} training run NAME --notebook {file}")


@app.command
def receipt(job: str, /) -> None:
    """Show how each cell of a job's notebook was converted.

    For example:

      shoal notebook receipt hello
      shoal notebook receipt hello --json

    Parameters
    ----------
    job
        Name or id of the job.
    """
    with connect() as client:
        found = client.sources.receipt(client.jobs.get(job).spec.source_id)
    out.show(found, lambda: print_receipt(found))
    out.info(f"{found.notebook}: {summary(found)}.")


def _write(files: dict[str, str], folder: Path) -> None:
    taken = [name for name in files if (folder / name).exists() and not _is_ours(folder / name, files[name])]
    if taken:
        raise Refused(f"{folder / taken[0]} already exists.", hint="Choose an empty folder: -o DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    out.dim(f"Wrote {plural(len(files), 'file')} to {folder}.")


def _is_ours(path: Path, text: str) -> bool:
    """Check whether a file may be overwritten: it has the same content, or an earlier conversion wrote it."""
    there = path.read_text("utf-8", "replace") if path.is_file() else ""
    was_written = any(words in there[:300] for words in _WRITTEN)
    return there == text or was_written or path.name.endswith(".receipt.json")
