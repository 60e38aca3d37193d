"""Prompts. Secrets are typed without echo or read from stdin; never from arguments, which all users of a machine can see."""

from __future__ import annotations

import sys

from shoal.core.errors import UsageError


def read_answer(question: str) -> str:
    """Ask a question on the terminal and return the answer; raise UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question.rstrip(': ')} is needed, and there is no terminal to ask on.")
    sys.stderr.write(question)
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer.strip()


def read_secret(what: str, *, from_stdin: bool, option: str, twice: bool = False) -> str:
    """Return a secret that is read from stdin (without one trailing newline) or typed without echo."""
    if from_stdin:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    elif not sys.stdin.isatty():
        raise UsageError(
            f"{what} is needed, and there is no terminal to ask on.", hint=f"Pipe it in: … {option} < FILE"
        )
    else:
        import getpass

        value = getpass.getpass(f"{what}: ", stream=sys.stderr)
        if twice and value != getpass.getpass(f"{what} again: ", stream=sys.stderr):
            raise UsageError("The two entries do not match.")
    if not value:
        raise UsageError(f"{what} is empty.")
    return value


def confirm(question: str, *, yes: bool) -> bool:
    """Ask before something that cannot be undone; without a terminal, `--yes` is required."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("This cannot be undone. Without a terminal to confirm on, it needs --yes.")
    return read_answer(f"{question} [y/N] ").lower() in ("y", "yes")
