"""Error reporting of the command line: every failure becomes one line, a hint and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cyclopts.exceptions import CycloptsError, UnknownOptionError

from shoal.cli.shared.output import out
from shoal.cli.shared.session import session
from shoal.core.errors import ShoalError, UsageError
from shoal.core.settings import Layout

HABITS = {
    "--gpus": "--accels",
    "--num-gpus": "--accels",
    "--ngpus": "--accels",
    "--nproc-per-node": "--accels",
    "--nproc": "--accels",
    "--nnodes": "--nodes",
    "--num-nodes": "--nodes",
    "--timeout": "--time-limit",
    "--cwd": "--dir",
    "--workdir": "--dir",
}
"""Options of other programs → ours, for the suggestion after an unknown option."""
KINDS_OF_SLOTS = {"nvidia": "cuda", "amd": "rocm", "hip": "rocm", "intel": "xpu", "gpus": "gpu", "accelerator": "gpu"}
"""Names that people use for kinds of slots → values of `--device`."""
_POSIX = frozenset({"fcntl", "resource", "pwd", "grp", "termios"})
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def run_guarded(command: Callable[[], object]) -> int:
    """Run the command and return its exit code. With SHOAL_DEBUG=1, exceptions are raised instead of reported."""
    try:
        result = command()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). Redirect stdout to /dev/null, or Python's flush at exit fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        out.end_line()
        out.info("Interrupted.")
        return EXIT_INTERRUPTED
    except Exception as error:
        if os.environ.get("SHOAL_DEBUG", "") not in ("", "0"):
            raise
        return report(error)


def report(error: Exception) -> int:
    """Print the error and return the exit code for it."""
    if isinstance(error, CycloptsError):
        message, hint = _usage(error)
        out.error(message, hint=hint)
        return EXIT_USAGE
    known = _as_ours(error)
    if known is None:
        out.error(f"Something unexpected happened inside Shoal: {type(error).__name__}.", hint=_crash_hint(error))
        return EXIT_BUG
    origin = _origin(known) if session.uses_server else None
    out.error(f"{known.message} {origin}" if origin else known.message, hint=known.hint)
    return known.exit_code


def _origin(error: ShoalError) -> str | None:
    """Return a sentence that names the flag, variable or file with the address or key that the error is about."""
    is_address = error.code == "unreachable" or (error.code == "invalid_spec" and "server address" in error.message)
    if not is_address and error.code not in ("not_signed_in", "key_expired", "forbidden"):
        return None
    from shoal.client.config import origins

    try:
        address, key = origins(Layout(), url=session.url)
    except ShoalError:
        return None  # the file is what the error is about
    if is_address:
        return f"The address is from {address}." if address else None
    return f"The key is from {key}." if key else None


def _as_ours(error: Exception) -> ShoalError | None:
    if isinstance(error, ShoalError):
        return error
    # Compared by name: commands that need no pydantic must not import it only to report an error.
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        text = str(first["msg"]).removeprefix("Value error, ")
        return _out_of_bounds(first) or UsageError(f"{field}: {text}." if field else f"{text}.")
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return UsageError(f"{error.filename}: {error.strerror}.")
    if isinstance(error, ModuleNotFoundError) and error.name in _POSIX:
        return UsageError(
            f"This command needs Linux (Python has no '{error.name}' here). On this system Shoal is the client of a server.",
            hint=f"{out.prog} login --url URL",
        )
    if isinstance(error, EOFError):
        return UsageError("The input ended before the question was answered.")
    return None


def _out_of_bounds(error: Any) -> UsageError | None:
    """Return the error for a number outside the bounds of a field, which names the option and the nearest allowed value."""
    bounds = [limit for name, limit in (error.get("ctx") or {}).items() if name in ("ge", "le")]
    if len(error["loc"]) != 1 or len(bounds) != 1:
        return None
    name = str(error["loc"][0]).removesuffix("_s")
    option = "--" + {"min_nodes": "nodes", "max_nodes": "nodes"}.get(name, name).replace("_", "-")
    side = "smallest" if "ge" in error["ctx"] else "largest"
    return UsageError(
        f"{option} {error['input']} is not possible; the {side} value is {bounds[0]}.", hint=f"{option} {bounds[0]}"
    )


def _usage(error: CycloptsError) -> tuple[str, str]:
    """Return the message for a wrong command line, and the hint: the help page to read."""
    words = [word for word in error.command_chain or () if not word.startswith("-")]
    help_page = " ".join([out.prog, *words, "--help"])
    if not isinstance(error, UnknownOptionError):
        return str(error).strip() + _meant(error), help_page
    option = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    if words[-1:] == ["run"]:
        help_page = f"Script arguments go after `--`. The options of `run`: {help_page}"
    return f"Unknown option {option}.{_near(option, known)}", help_page


def _meant(error: CycloptsError) -> str:
    """Return which kind of slots is meant by another name given to `--device`."""
    token = getattr(error, "token", None)
    if token is None or token.keyword != "--device":
        return ""
    given = token.value.lower().partition(":")[0]
    found = KINDS_OF_SLOTS.get(given) or (
        given if given in ("gpu", "cpu", "cuda", "rocm", "xpu", "any", "auto") else ""
    )
    said = f' Did you mean "{found}"?'
    return said if found and said not in str(error) else ""


def _near(option: str, known: list[str]) -> str:
    import difflib

    if HABITS.get(option.replace("_", "-")) in known:
        return f" Did you mean {HABITS[option.replace('_', '-')]}?"
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
        return "Run it again with SHOAL_DEBUG=1 to see the traceback."
    return f"The details are in {path}"
