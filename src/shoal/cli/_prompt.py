"""Asking people: secrets without echo, or from stdin for scripts; never as arguments, which everyone on the machine can see."""

from __future__ import annotations

import sys

from shoal.core.errors import UsageError


def ask(question: str) -> str:
    """A line of text."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question.rstrip(': ')} is needed, and there is no terminal to ask on.")
    sys.stderr.write(question)
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer.strip()


def ask_secret(what: str, *, from_stdin: bool, option: str, twice: bool = False) -> str:
    """A secret, from stdin (one trailing newline dropped) or typed unseen."""
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
            raise UsageError("The two differ.")
    if not value:
        raise UsageError(f"{what} is empty.")
    return value


def confirm(question: str, *, yes: bool) -> bool:
    """Ask before something that cannot be undone; without a terminal `--yes` is needed."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("This cannot be undone, so it needs --yes where nobody can be asked.")
    return ask(f"{question} [y/N] ").lower() in ("y", "yes")
