"""Refusal of passwords that are guessed first: 12,000 common ones, with digits and signs around them too.

The list was made from those of zxcvbn (MIT licence) and Django (BSD licence): the 10,000 commonest, and all others that are long
enough for Shoal. Nothing is sent anywhere.
"""

from __future__ import annotations

import functools
import gzip
import re
from importlib.resources import files

from shoal.core.errors import InvalidSpec

_AROUND = re.compile(r"^[^a-z]+|[^a-z]+$")
_FEW = 4
"""Different characters a password must have."""
_LEETS = str.maketrans("013457@$!", "oieastasi")


def check(password: str, *, email: str = "") -> None:
    """Raise InvalidSpec if a password is one of the first that an attacker would try for this account."""
    low = password.lower()
    core = _AROUND.sub("", low)
    # "p4ssw0rd2024" is "password" with what everyone adds to it.
    guesses = {low, core, low.translate(_LEETS), core.translate(_LEETS), _AROUND.sub("", low.translate(_LEETS))} - {""}
    if guesses & _common():
        raise InvalidSpec(
            "This password is among the commonest ones, or is one of them with digits around it.", hint=_HINT
        )
    if len(set(low)) < _FEW:
        raise InvalidSpec(f"A password needs at least {_FEW} different characters.", hint=_HINT)
    name = email.partition("@")[0].lower()
    if len(name) >= _FEW and (core in (name, email.lower()) or low == name):
        raise InvalidSpec("This password is your e-mail address.", hint=_HINT)


_HINT = "Use a password manager, or a few words that do not belong together."


@functools.cache
def _common() -> frozenset[str]:
    packed = (files("shoal.server.people") / "common_passwords.txt.gz").read_bytes()
    return frozenset(gzip.decompress(packed).decode().split("\n"))
