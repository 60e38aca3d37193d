"""Output of all commands through one object, `out`: data on stdout (tables on a terminal, plain text in a pipe, JSON with
`--json`), messages on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from shoal.cli.shared.format import STATUS_STYLES, ago, clean, timestamp
from shoal.cli.shared.tables import GAP, Column, Fit, fit, natural_width

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


__all__ = ["Column", "Output", "as_json", "human", "json_line", "out", "plain"]


class Output:
    def __init__(self) -> None:
        self.prog = "flexai" if Path(sys.argv[0]).stem == "flexai" else "shoal"
        """Name of the program as it was called; used in the commands that hints suggest."""
        self.json = False
        self.quiet = False
        self.wide = False
        """True to show all columns of a table, however narrow the terminal is."""
        self._sticky = ""
        self._consoles: dict[bool, Console] = {}

    @property
    def is_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def talks_to_terminal(self) -> bool:
        return sys.stderr.isatty()

    # Data: stdout

    def show(self, value: Any, human: Callable[[], None]) -> None:
        """Print the value as JSON with `--json`; otherwise call `human`, which prints it for people."""
        if self.json:
            self.emit(value)
        else:
            human()

    def emit(self, value: Any) -> None:
        """Print the value as one JSON document."""
        self.line(json.dumps(as_json(value), indent=2, ensure_ascii=False))

    def line(self, text: str = "") -> None:
        self.write(text + "\n")

    def write(self, text: str) -> None:
        sticky = self.hide_sticky()
        # A name or a log may contain a lone surrogate, which cannot be encoded.
        sys.stdout.write(text.encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8"))
        sys.stdout.flush()
        self.stick(sticky)

    def table(self, rows: Sequence[Any], columns: Sequence[Column], *, empty: str = "") -> None:
        """Print a table. Without rows, `empty` is said on stderr: what there would be, and the command that makes it."""
        if not rows and empty:
            self.info(empty)
            if self.is_terminal:
                return
        if not self.is_terminal:
            self._plain_table(rows, columns)
            return
        cells = _cells(rows, columns)
        if self.wide:
            # The console is as wide as the table: the terminal wraps the lines, and copied text has no line breaks.
            self._new_console(sys.stdout, natural_width(columns, cells)).print(_rich_table(cells, columns, None))
            return
        found = fit(columns, cells, self.console().width)
        self.console().print(_rich_table(cells, columns, found))
        if found.left_out:
            self.dim(f"Not shown: {', '.join(columns[i].title.lower() for i in found.left_out)}. All columns: --wide")

    def fields(self, pairs: Iterable[tuple[str, Any]], *, indent: str = "") -> None:
        """Print one label and value per line; pairs without a value are omitted."""
        shown = [(label, value) for label, value in pairs if value not in (None, "")]
        width = max((len(label) for label, _ in shown), default=0)
        for label, value in shown:
            if self.is_terminal:
                self._print_rich((f"{indent}{label.ljust(width)}  ", "dim"), self._styled(value))
            else:
                self.line(f"{indent}{(label + ':').ljust(width + 1)}  {plain(value)}")

    def heading(self, text: str) -> None:
        self.line()
        if self.is_terminal:
            self._print_rich((text, "bold"))
        else:
            self.line(f"{text}:")

    def styled(self, *parts: str | tuple[str, str]) -> None:
        """Print one line made of plain and (text, style) parts."""
        if self.is_terminal:
            self._print_rich(*parts)
        else:
            self.line("".join(p if isinstance(p, str) else p[0] for p in parts))

    # Talk: stderr

    def info(self, text: str) -> None:
        if not self.quiet:
            self._print_message(text)

    def dim(self, text: str) -> None:
        if not self.quiet:
            self._print_message(text, "dim")

    def warn(self, text: str) -> None:
        self._print_message(f"warning: {text}", "yellow", lead="warning:")

    def error(self, text: str, *, hint: str | None = None) -> None:
        self.stick("")
        self._print_message(f"error: {text}", "bold red", lead="error:")
        if hint:
            self._print_message(f"hint: {hint}", "cyan", lead="hint:")

    def status(self, label: str, style_of: str, rest: str = "") -> None:
        """Print a change of state in the colour of that state."""
        if not self.quiet:
            self._print_message(f"{label} {rest}".rstrip(), STATUS_STYLES.get(style_of, "default"), lead=label)

    def stick(self, text: str) -> None:
        """Show a line that stays at the bottom of the terminal until the next call; '' removes it."""
        self.hide_sticky()
        if text and self.talks_to_terminal and not self.quiet and not self.json:
            sys.stderr.write(f"\r{text[: _width() - 1]}")
            sys.stderr.flush()
            self._sticky = text

    def hide_sticky(self) -> str:
        shown, self._sticky = self._sticky, ""
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        return shown

    def end_line(self) -> None:
        """Remove the sticky line and start a new line after the `^C` that the terminal has echoed."""
        self.stick("")
        if self.talks_to_terminal:
            sys.stderr.write("\n")

    def console(self, *, stderr: bool = False) -> Console:
        stream = sys.stderr if stderr else sys.stdout
        known = self._consoles.get(stderr)
        if known is None or known.file is not stream:
            known = self._consoles[stderr] = self._new_console(stream)
        return known

    def _new_console(self, stream: TextIO, width: int | None = None) -> Console:
        from rich.console import Console

        return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)

    def _print_message(self, text: str, style: str = "", *, lead: str = "") -> None:
        sticky = self.hide_sticky()
        sys.stdout.flush()
        if style and self.talks_to_terminal:
            from rich.text import Text

            shown = Text(text, style="" if lead else style)
            if lead:
                shown.stylize(style, 0, len(lead))
            self.console(stderr=True).print(shown, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)
        self.stick(sticky)

    def _print_rich(self, *parts: str | tuple[str, str] | Text) -> None:
        from rich.text import Text

        self.console().print(Text.assemble(*parts), soft_wrap=True)

    def _styled(self, value: Any) -> str | tuple[str, str]:
        text = human(value)
        style = STATUS_STYLES.get(text) if isinstance(value, str) else None
        return (text, style) if style else text

    def rich_table(self, rows: Sequence[Any], columns: Sequence[Column]) -> Table:
        """Return the table that `table` would print on a terminal."""
        cells = _cells(rows, columns)
        return _rich_table(cells, columns, None if self.wide else fit(columns, cells, self.console().width))

    def _plain_table(self, rows: Sequence[Any], columns: Sequence[Column]) -> None:
        grid = [[c.title for c in columns], *([plain(c.value(row)) for c in columns] for row in rows)]
        widths = [max(len(line[i]) for line in grid) for i in range(len(columns))]
        for line in grid:
            padded = [
                cell.rjust(width) if column.is_right else cell.ljust(width)
                for cell, width, column in zip(line, widths, columns, strict=True)
            ]
            self.line("  ".join(padded).rstrip())


def _cells(rows: Sequence[Any], columns: Sequence[Column]) -> list[list[str]]:
    return [[human(column.value(row)) for column in columns] for row in rows]


def _rich_table(cells: Sequence[Sequence[str]], columns: Sequence[Column], found: Fit | None) -> Table:
    """Return a table of the columns that fit; of all columns if `found` is None."""
    from rich.table import Table
    from rich.text import Text

    shown = list(range(len(columns))) if found is None else found.shown
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for column in (columns[i] for i in shown):
        # Sentences wrap between words. A name wider than the terminal is folded, never cut, so that it can be copied.
        table.add_column(
            column.title,
            justify="right" if column.is_right else "left",
            overflow="fold",
            no_wrap=not column.is_text and (found is None or found.fits),
        )
    for row in cells:
        styles = [STATUS_STYLES.get(row[i], "") if columns[i].is_status else "" for i in shown]
        table.add_row(*(Text(row[i], style=style) for i, style in zip(shown, styles, strict=True)))
    return table


def human(value: Any) -> str:
    """Return a value as text for a terminal: times relative, "–" for no value."""
    if value is None or value == "":
        return "–"
    return ago(value) if isinstance(value, datetime) else clean(str(value))


def plain(value: Any) -> str:
    """Return a value as text for a pipe: times in ISO format, "-" for no value."""
    if value is None or value == "":
        return "-"
    return timestamp(value) if isinstance(value, datetime) else clean(str(value))


def json_line(value: Any) -> str:
    """Return a value as one line of a JSON stream."""
    return json.dumps(as_json(value), ensure_ascii=False) + "\n"


def as_json(value: Any) -> Any:
    """Convert schemas, and lists and mappings of them, to plain JSON values."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {k: as_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(v) for v in value]
    return value


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 80


out = Output()
