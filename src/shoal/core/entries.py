"""The entry of a job: the script in its source, found or refused with a suggestion. The same for the command line and the server."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from shoal.core.errors import EntryNotFound
from shoal.core.names import did_you_mean

SCRIPTS = (".py", ".sh")
"""Suffixes of files that can be started by their name."""


def check_entry(script: str, paths: Sequence[str], *, typed: str | None = None, is_excluded: bool = False) -> bool:
    """Check that a job's first word can be started; raise EntryNotFound with a suggestion if it is a missing script.

    Args:
        script: First word of the entry, as a path relative to the root of the source.
        paths: Files of the source.
        typed: The word as the person typed it, for the message.
        is_excluded: The file exists on the person's machine, but is not part of the source.

    Returns:
        Whether it is a file of the source. Other words (`torchrun`, `-m`, a command that requirements.txt installs) are
        accepted unchecked.
    """
    if script in paths:
        return True
    is_folder = any(path.startswith(script.rstrip("/") + "/") for path in paths)
    if not script.endswith(SCRIPTS) and not is_folder and f"{script}.py" not in paths:
        return False
    raise EntryNotFound(
        f"There is no script {typed or script!r} in the source. {_suggestion(script, paths, is_excluded)}"
    )


def _suggestion(script: str, paths: Sequence[str], is_excluded: bool) -> str:
    scripts = [path for path in paths if path.endswith(SCRIPTS)]
    elsewhere = [path for path in scripts if path.endswith("/" + posixpath.basename(script))]
    if elsewhere:
        return f"Did you mean {' or '.join(map(repr, elsewhere[:3]))}?"
    if is_excluded:
        return "The file exists, but .gitignore, .shoalignore or the name of its folder excludes it."
    inside = [path for path in scripts if path.startswith(script.rstrip("/") + "/")]
    if guess := did_you_mean(script, inside or scripts):
        return guess.strip()
    shown = (inside or scripts)[:5]
    more = " …" if len(scripts) > len(shown) else ""
    return f"It contains {', '.join(shown)}{more}." if shown else "It contains no scripts."
