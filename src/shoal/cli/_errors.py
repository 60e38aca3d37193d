"""How a command ends: every failure becomes one clear line, a hint and the right exit code, never a traceback."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cyclopts.exceptions import CycloptsError, UnknownOptionError

from shoal.cli._output import out
from shoal.core.errors import ShoalError, UsageError
from shoal.core.settings import Layout

EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def run_guarded(command: Callable[[], object]) -> int:
    """Run it and give the exit code. SHOAL_DEBUG=1 lets exceptions through."""
    try:
        result = command()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        # The reader has left (`| head`). Point stdout at nothing, or Python complains again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        out.end_line()
        out.say("Interrupted.")
        return EXIT_INTERRUPTED
    except Exception as error:
        if os.environ.get("SHOAL_DEBUG", "") not in ("", "0"):
            raise
        return report(error)


def report(error: Exception) -> int:
    """Print it; the exit code to end with."""
    if isinstance(error, CycloptsError):
        message, hint = _usage(error)
        out.error(message, hint=hint)
        return EXIT_USAGE
    known = _as_ours(error)
    if known is None:
        out.error(f"Something unexpected happened inside Shoal: {type(error).__name__}.", hint=_crash_hint(error))
        return EXIT_BUG
    out.error(known.message, hint=known.hint)
    return known.exit_code


def _as_ours(error: Exception) -> ShoalError | None:
    if isinstance(error, ShoalError):
        return error
    # By name, so that the commands that need no pydantic do not import it to say so.
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        text = str(first["msg"]).removeprefix("Value error, ")
        return UsageError(f"{field}: {text}." if field else f"{text}.")
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return UsageError(f"{error.filename}: {error.strerror}.")
    if isinstance(error, EOFError):
        return UsageError("The input ended before the answer came.")
    return None


def _usage(error: CycloptsError) -> tuple[str, str]:
    """What was wrong with the command line, and where to look."""
    words = [word for word in error.command_chain or () if not word.startswith("-")]
    help_page = " ".join([out.prog, *words, "--help"])
    if not isinstance(error, UnknownOptionError):
        return str(error).strip(), help_page
    option = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    if words[-1:] == ["run"]:
        help_page = f"What is meant for the script goes after `--`; the options of `run`: {help_page}"
    return f"Unknown option {option}.{_near(option, known)}", help_page


def _near(option: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(option, known, n=1, cutoff=0.75)
    return f" Did you mean {close[0]}?" if close else ""


def _crash_hint(error: Exception) -> str:
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    path = Layout().root / "crashes" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        path = Path(tempfile.gettempdir()) / path.name
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
            file.write(text)
    except OSError:
        return "Set SHOAL_DEBUG=1 and run it again to see where."
    return f"The details are in {path}"
