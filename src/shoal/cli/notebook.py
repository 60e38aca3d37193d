"""`shoal notebook`: what becomes of a notebook that is run as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from shoal.cli._format import plural
from shoal.cli._notebook import convert_file, print_receipt, summary
from shoal.cli._output import out
from shoal.cli._session import connect
from shoal.core.errors import Refused

app = App(name="notebook")


@app.command(sort_key=0)
def convert(
    file: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    entry_cell: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
) -> None:
    """Show what becomes of each cell of a notebook, and write the script.

    Nothing is run and no server is asked. `training run --notebook` converts
    in the same way.

    For example:

      shoal notebook convert train.ipynb
      shoal notebook convert train.ipynb -o train/
      shoal notebook convert train.ipynb --entry-cell 2-9 --json

    Parameters
    ----------
    file
        The notebook.
    output
        Folder to write the script, its requirements and the receipt to.
    entry_cell
        Only these cells, in this order: 3, 2-7, 4-, or a tag's name.
    """
    made = convert_file(file, entry_cell)
    if output is not None:
        _write(made.files(), output)
    out.show(made.receipt, lambda: print_receipt(made.receipt))
    out.say(f"{file.name}: {summary(made.receipt)}.")
    if output is not None:
        out.dim(f"  python {output / made.script_name}")
    else:
        out.dim(f"  {out.prog} training run NAME --notebook {file}")


@app.command
def receipt(job: str, /) -> None:
    """Show what became of each cell of the notebook that a job runs.

    For example:

      shoal notebook receipt hello
      shoal notebook receipt hello --json

    Parameters
    ----------
    job
        The job's name or id.
    """
    with connect() as client:
        found = client.sources.receipt(client.jobs.get(job).spec.source_id)
    out.show(found, lambda: print_receipt(found))
    out.say(f"{found.notebook}: {summary(found)}.")


def _write(files: dict[str, str], folder: Path) -> None:
    taken = [name for name in files if (folder / name).exists() and not _is_ours(folder / name, files[name])]
    if taken:
        raise Refused(f"{folder / taken[0]} is there already.", hint="Choose an empty folder: -o DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    out.dim(f"Wrote {plural(len(files), 'file')} to {folder}.")


def _is_ours(path: Path, text: str) -> bool:
    """The same file again, or one of an earlier conversion, may be written over."""
    there = path.read_text("utf-8", "replace") if path.is_file() else ""
    return (
        there == text or "as a script. What became of each cell" in there[:300] or path.name.endswith(".receipt.json")
    )
