"""Tables, pages and JSON: for people on a terminal, for programs in a pipe."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta

import pytest

from shoal.cli.shared.output import Column, Output

ROWS = [("gpt", "running", datetime.now(UTC) - timedelta(hours=3, minutes=5)), ("evil\x1b[2J", "failed", None)]
COLUMNS = [
    Column("NAME", lambda r: r[0]),
    Column("STATUS", lambda r: r[1], is_status=True),
    Column("WHEN", lambda r: r[2]),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Set up the output; called in the test itself, because pytest replaces the streams between a fixture and the test."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def test_a_piped_table_is_aligned_plain_text_with_iso_times(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(ROWS, COLUMNS)
    header, first, second = capsys.readouterr().out.splitlines()
    assert header == "NAME  STATUS   WHEN"
    assert first.split() == ["gpt", "running", ROWS[0][2].strftime("%Y-%m-%dT%H:%M:%SZ")]  # type: ignore[union-attr]
    assert second.split() == ["evil", "failed", "-"]


def test_an_empty_piped_table_is_its_header_and_says_on_stderr_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table([], COLUMNS, empty="None yet.")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("NAME  STATUS  WHEN\n", "None yet.\n")


def test_a_table_on_a_terminal_has_colours_and_relative_times(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    Output().table(ROWS, COLUMNS)
    text = terminal.getvalue()
    assert "\x1b[1;34mrunning" in text
    assert "3 h ago" in text
    assert "\x1b[2J" not in text


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    Output().table(ROWS, COLUMNS)
    assert "34mrunning" not in terminal.getvalue()


def test_quiet_keeps_data_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.quiet = True
    out.info("talk")
    out.dim("more talk")
    out.line("data")
    out.error("trouble", hint="what to do")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("data\n", "error: trouble\nhint: what to do\n")


def test_the_sticky_line_gives_way_to_every_other_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    out = Output()
    out.stick("40 %")
    out.line("log line")
    out.info("talk")
    out.stick("")
    out.stick("")
    assert terminal.getvalue() == "\r40 %\r\x1b[Klog line\n\r40 %\r\x1b[Ktalk\n\r40 %\r\x1b[K"


def test_nothing_sticks_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    Output().stick("40 %")
    assert capsys.readouterr().err == ""


def test_broken_text_is_printed_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Output().line("half \ud800 pair")
    assert capsys.readouterr().out == "half ? pair\n"
