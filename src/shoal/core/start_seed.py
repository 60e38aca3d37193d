"""Random seed of job copies that are compared with each other (verify-resume, drills): SHOAL_START_SEED.

A script that sets no seed starts differently each time, so two copies of it would differ without any fault. If the variable is
set, the random generators of Python, numpy and torch start from a number that depends only on the rank and the attempt. Seeds
that the script sets itself are set later and take precedence. Standard library only: workers read this before their script
begins.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

VARIABLE = "SHOAL_START_SEED"
_EVERY_ATTEMPT = "every-attempt"


def new(*, every_attempt: bool = False, like: str | None = None) -> str:
    """Return a value for the variable, with the number of `like` if that is given.

    every_attempt   a restarted worker gets the same seed as in the first attempt; otherwise a different one, as without the
                    variable
    """
    import secrets

    number = str(secrets.randbelow(2**31)) if like is None else like.partition(",")[0]
    return f"{number},{_EVERY_ATTEMPT}" if every_attempt else number


def seed_of(env: Mapping[str, str]) -> int | None:
    """Return the seed of this worker, in 32 bits; None if the variable is not set."""
    number, _, rule = env.get(VARIABLE, "").partition(",")
    if not number:
        return None
    attempt = "1" if rule == _EVERY_ATTEMPT else env.get("SHOAL_ATTEMPT", "1")
    rank = env.get("RANK") or env.get("SHOAL_RANK") or "0"
    return zlib.crc32(f"{number}/{attempt}/{rank}".encode())
