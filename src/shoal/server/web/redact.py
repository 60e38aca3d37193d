"""Redaction of what must not be shown: values of a workspace's secrets wherever they occur, and values with telling names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.agent.workers.lines import Redactor as BytesRedactor
from shoal.server.context import Context
from shoal.server.people import secrets
from shoal.server.policy import Access

HIDDEN = "***"
_TELLTALE = re.compile(
    r"(?:^|[_.-])(?:token|secret|password|passwd|passphrase|credentials?|(?:api|access|secret|private|auth|account)[_-]?key)(?:[_-]id)?$",
    re.IGNORECASE,
)
_VOCABULARY = re.compile(r"(?:^|[_.-])(?:bos|eos|pad|unk|sep|cls|mask|special|image|decoder_start)[_-]token$", re.I)

_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^/\s@:]*:[^/\s@]+@", re.IGNORECASE)


def names_secret(name: str) -> bool:
    """Return whether a name suggests that its value is a secret (`api_key`); a tokenizer's `eos_token` is not one."""
    return bool(_TELLTALE.search(name)) and not _VOCABULARY.search(name)


class Redactor:
    def __init__(self, values: Sequence[str] = ()):
        self._hide = BytesRedactor(values)

    @classmethod
    def of(cls, ctx: Context, access: Access) -> Redactor:
        """Return a redactor for all secrets of the workspace, not only those that a job received."""
        names = [view.name for view in secrets.list_secrets(ctx, access)]
        opened = secrets.open_secrets(ctx, access.workspace_id, {name: name for name in names})
        return cls(list(opened.values()))

    def text(self, value: str) -> str:
        """Redact secrets and the passwords in URLs."""
        hidden = self._hide(value.encode("utf-8", "replace")).decode("utf-8", "replace")
        return _LOGIN.sub(rf"\1{HIDDEN}@", hidden) if "@" in hidden else hidden

    def env(self, values: Mapping[str, str]) -> dict[str, str]:
        return {k: HIDDEN if names_secret(k) and v else self.text(v) for k, v in values.items()}

    def words(self, argv: Sequence[str]) -> list[str]:
        """Redact command-line arguments, including the values of `--api-key VALUE` and `--api-key=VALUE`."""
        shown: list[str] = []
        for word in argv:
            name, equals, value = word.partition("=")
            is_flag = word.startswith("-")
            before = shown[-1] if shown else ""
            if equals and value and names_secret(name.lstrip("-")):
                shown.append(f"{name}={HIDDEN}")
            elif not is_flag and before.startswith("-") and names_secret(before.lstrip("-")):
                shown.append(HIDDEN)
            else:
                shown.append(self.text(word))
        return shown

    def data(self, value: Any, name: str = "") -> Any:
        """Redact a JSON value at any depth. `name` is the key under which it stands."""
        if isinstance(value, str):
            return HIDDEN if value and names_secret(name) else self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.data(v, str(k)) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(v, name) for v in value]
        return value
