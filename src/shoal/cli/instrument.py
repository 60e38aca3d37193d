"""`shoal instrument`: copy a training script and add the SDK's lines to it."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shoal.cli.shared.format import clean
from shoal.cli.shared.output import out
from shoal.core.errors import EntryNotFound, Refused, UsageError

_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def instrument(
    script: Path,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    diff: bool = False,
    force: bool = False,
) -> None:
    """Write a copy of a training script that reports to Shoal, and show the diff.

    Supports plain PyTorch loops, the Hugging Face Trainer, Accelerate, Fabric
    and Lightning. Comments and formatting are kept. If the right place for a
    line is not certain, the command explains why and writes nothing.

    For example:

      shoal instrument train.py
      shoal instrument train.py -o train_on_shoal.py
      shoal instrument train.py --diff

    Parameters
    ----------
    script
        The script; it is not changed.
    output
        Path of the copy (default: train_shoal.py for train.py).
    diff
        Only show the diff; write nothing.
    force
        Overwrite an existing file, even the script itself if --output names it.
    """
    from shoal.check.instrument.writer import instrument as write

    text = _read(script)
    target = output or script.with_stem(f"{script.stem}_shoal")
    if not diff and not force and target.exists():
        raise Refused(
            f"{target} already exists.",
            hint=f"{out.prog} instrument {script} -o OTHER.py, or --force to overwrite it",
        )
    done = write(str(script), text)
    changes = list(
        difflib.unified_diff(text.splitlines(), done.text.splitlines(), str(script), str(target), lineterm="", n=2)
    )
    if not diff:
        _write(target, done.text)
    about = {"framework": done.framework, "output": None if diff else str(target), "diff": "\n".join(changes)}
    out.show(about | {"notes": done.notes}, lambda: _print(changes))
    for note in done.notes:
        out.warn(note)
    if not diff:
        out.info(f"Wrote {target} ({done.framework}).")
        out.dim(f"  {out.prog} run {target}")


def _read(script: Path) -> str:
    if script.suffix != ".py":
        raise UsageError(f"{script} is not a Python script.", hint=f"{out.prog} instrument train.py")
    try:
        return script.read_bytes().decode("utf-8")
    except OSError as error:
        raise EntryNotFound(f"{script}: {error.strerror}.", hint=f"{out.prog} instrument train.py") from None
    except UnicodeDecodeError:
        raise UsageError(f"{script} is not UTF-8 text.", hint="Save it as UTF-8, and try again.") from None


def _write(target: Path, text: str) -> None:
    """Write a temporary file beside the target and rename it, so that a full disk never destroys an existing file."""
    aside = target.with_name(f".{target.name}.partial")
    try:
        aside.write_bytes(text.encode())
        aside.replace(target)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UsageError(
            f"{target} cannot be written: {error.strerror}.", hint="Choose another path with -o."
        ) from None


def _print(changes: list[str]) -> None:
    for line in changes:
        style = _STYLES.get(line[:1]) if not line.startswith(("+++", "---")) else "bold"
        text = clean(line) if out.is_terminal else line
        out.styled((text, style) if style else text)
