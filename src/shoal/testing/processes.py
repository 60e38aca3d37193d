"""Reads what a process shows of itself; one that has ended since it was listed shows nothing, and no error is raised."""

import psutil


def lives(process: psutil.Process) -> bool:
    """Check that a process has not ended; one that is only still to be collected has."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def command(process: psutil.Process) -> str:
    """Return the words of its command line, with spaces between."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # also a zombie: it has no command line any more
        return ""


def program(process: psutil.Process) -> str:
    """Return the name of its program."""
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment it was started with."""
    try:
        return dict(process.environ()) if lives(process) else {}
    except psutil.Error:
        return {}
