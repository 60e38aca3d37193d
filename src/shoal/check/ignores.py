"""Parser of `# shoal: ignore[rule, …]` at the end of a line, or alone above it; without brackets it ignores all rules."""

from __future__ import annotations

import io
import re
import tokenize

_COMMENT = re.compile(r"#\s*shoal:\s*ignore(?:\[([^\]]*)\])?")
ALL = "*"


def ignored(text: str) -> dict[int, set[str]]:
    """Return a mapping of line → rules that are ignored there."""
    found: dict[int, set[str]] = {}
    if "shoal:" not in text:
        return found
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return found
    for token in tokens:
        match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        rules = {name.strip() for name in match[1].split(",")} if match[1] is not None else {ALL}
        alone = not token.line[: token.start[1]].strip()
        found.setdefault(token.start[0] + alone, set()).update(rules)
    return found
