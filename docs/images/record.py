"""Makes run.svg from a real run: `python docs/images/record.py` in the environment Shoal is installed in."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

HERE = Path(__file__).resolve().parent
COLUMNS = 112
COMMANDS = [
    "shoal training run first --nodes 2 --accels 2 -f -- train.py --steps 100",
    "shoal training list",
]
THEME = TerminalTheme(
    (13, 27, 42),
    (214, 224, 235),
    [(26, 44, 64), (255, 107, 107), (94, 211, 157), (255, 203, 107), (110, 168, 254), (199, 146, 234), (86, 204, 221), (214, 224, 235)],
    [(91, 112, 136), (255, 138, 138), (130, 230, 182), (255, 217, 145), (147, 191, 255), (215, 172, 244), (126, 222, 236), (255, 255, 255)],
)  # fmt: skip
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>A training job on two nodes with two workers each, followed on the terminal</title>
<style>
.{unique_id}-matrix {{ font-family: FONT; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g>
</g></svg>
""".replace("FONT", FONT)


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "SHOAL_HOME": home, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        subprocess.run(["shoal", "up", "--slots", "4"], env=env, check=True, capture_output=True)
        try:
            shown = [(command, record(command, env)) for command in COMMANDS]
        finally:
            subprocess.run(["shoal", "server", "stop"], env=env, check=True, capture_output=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), legacy_windows=False)
    for number, (command, output) in enumerate(shown):
        console.print(Text.assemble("\n" if number else "", ("$ ", "bold cyan"), (command, "bold")))
        console.print(Text.from_ansi(output), soft_wrap=False)
    svg = console.export_svg(title="", theme=THEME, code_format=FRAME, unique_id="run")
    # Without the clips, which cut the descenders of taller fonts than the one they were made for.
    (HERE / "run.svg").write_text(re.sub(r' clip-path="[^"]*"', "", svg))


def record(command: str, env: dict[str, str]) -> str:
    """Run a command in a terminal and return its final screen."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, True)
    set_size(theirs)
    process = subprocess.Popen(
        command.split(),
        cwd=HERE.parents[1] / "examples/quickstart",
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    data = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        data += piece
    if process.wait() != 0:
        sys.exit(data.decode())
    text = data.decode().replace("\r\n", "\n")
    return re.sub(r"\r[^\n\x1b]*(?=\r\x1b\[K)|\r\x1b\[K", "", text).rstrip()


def set_size(terminal: int) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))


if __name__ == "__main__":
    main()
