"""One error tree. The docstring of a class is its default message; `code` is stable across the wire.

ShoalError
├── UsageError            the request is malformed                         exit 2
│   ├── InvalidName
│   ├── InvalidSpec
│   ├── EntryNotFound
│   ├── BadArchive
│   ├── SourceTooLarge
│   ├── GitFailed
│   └── MissingExtra
├── NotFound              it does not exist, or is not visible to you      exit 3
├── Refused               well-formed, but not possible now                exit 4
│   ├── NameTaken
│   ├── CanNeverRun
│   ├── DeviceMissing
│   ├── NotAllowedNow
│   ├── Fenced
│   ├── WrongInstance
│   ├── OutOfSequence
│   ├── Corrupt
│   └── StorageFull
├── AuthError             not signed in, or not permitted                  exit 5
│   ├── NotSignedIn
│   ├── KeyExpired
│   ├── Forbidden
│   └── TooManyTries
├── Unreachable           the server did not answer                        exit 6
│   ├── Busy              its database is locked or slow; nothing was done
│   └── StorageFailing    its disk or database does not work now
├── TimedOut              it did not finish in time                        exit 7
├── JobFailed             the job itself failed                            exit 1
└── Internal              a bug in Shoal                                   exit 70
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar


class ShoalError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str | None = None, *, hint: str | None = None, details: dict[str, Any] | None = None):
        self.message = message or (type(self).__doc__ or "").strip()
        self.hint = hint
        """The next thing to do, if possible a command."""
        self.details = details or {}
        super().__init__(self.message)
        if hint:
            self.add_note(hint)  # shown below the message in a traceback

    def to_wire(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint, "details": self.details}}


class UsageError(ShoalError):
    """The request is malformed."""

    code, http_status, exit_code = "usage", 422, 2


class InvalidName(UsageError):
    """Names start with a letter or digit and hold only letters, digits, '.', '_' and '-', at most 63 of them."""

    code = "invalid_name"


class InvalidSpec(UsageError):
    """A field of the request has a value that is not allowed."""

    code = "invalid_spec"


class EntryNotFound(UsageError):
    """The script to run is not in the source."""

    code = "entry_not_found"


class BadArchive(UsageError):
    """The archive cannot be used."""

    code = "bad_archive"


class SourceTooLarge(UsageError):
    """The source is larger than the limit for code. Push data as a dataset, or list what to skip in .shoalignore."""

    code, http_status = "source_too_large", 413


class GitFailed(UsageError):
    """The git repository or revision could not be fetched."""

    code = "git_failed"


class MissingExtra(UsageError):
    """This needs an optional part of Shoal that is not installed."""

    code = "missing_extra"


class NotFound(ShoalError):
    """The requested object was not found."""

    code, http_status, exit_code = "not_found", 404, 3


class Refused(ShoalError):
    """This is not possible."""

    code, http_status, exit_code = "refused", 409, 4


class NameTaken(Refused):
    """This name is already in use."""

    code = "name_taken"


class CanNeverRun(Refused):
    """No machine of this server can run this job."""

    code, http_status = "can_never_run", 422


class DeviceMissing(Refused):
    """The worker runs on an accelerator's slot, but torch cannot use it. Submit with --allow-cpu to train on the CPU."""

    code = "device_missing"


class NotAllowedNow(Refused):
    """This is not possible in the present state."""

    code = "not_allowed_now"


class Fenced(Refused):
    """This attempt was replaced by a newer one; its writes are no longer accepted."""

    code = "fenced"


class WrongInstance(Refused):
    """This is not the expected server: another server has its address now, or its data directory is a copy."""

    code, http_status = "wrong_instance", 421


class OutOfSequence(Refused):
    """The batch does not follow the last one; send again from the given sequence number."""

    code = "out_of_sequence"


class Corrupt(Refused):
    """The bytes do not match their hash."""

    code, http_status = "corrupt", 422


class StorageFull(Refused):
    """The disk is full. Free some space and try again; nothing was lost."""

    code, http_status = "storage_full", 507


class AuthError(ShoalError):
    """Access denied."""

    code, http_status, exit_code = "auth", 401, 5


class NotSignedIn(AuthError):
    """No valid key was given. Sign in with `shoal login`, or set SHOAL_API_KEY."""

    code = "not_signed_in"


class KeyExpired(AuthError):
    """This key has expired or was revoked. Make a new one with `shoal key create NAME`."""

    code = "key_expired"


class Forbidden(AuthError):
    """Your role or your key's scopes do not allow this."""

    code, http_status = "forbidden", 403


class TooManyTries(AuthError):
    """Too many failed tries. Wait a minute and try again."""

    code, http_status = "too_many_tries", 429


class Unreachable(ShoalError):
    """The server did not answer."""

    code, http_status, exit_code = "unreachable", 503, 6


class Busy(Unreachable):
    """The database is busy. Nothing was done; try again shortly."""

    code = "busy"


class StorageFailing(Unreachable):
    """The server cannot read or write its disk now. Try again; see `shoal server log` for the cause."""

    code = "storage_failing"


class TimedOut(ShoalError):
    """The operation did not finish in time."""

    code, http_status, exit_code = "timed_out", 504, 7


class JobFailed(ShoalError):
    """The job failed."""

    code, http_status, exit_code = "job_failed", 409, 1


class Internal(ShoalError):
    """Something broke inside Shoal. The server's log has the details: `shoal server log`."""

    code = "internal"


def from_wire(body: dict[str, Any], http_status: int) -> ShoalError:
    """Return the exception for an error of the API. Unknown codes become the first class with the same HTTP status."""
    error = body.get("error") or {}
    cls = BY_CODE.get(error.get("code", "")) or next(
        (c for c in BY_CODE.values() if c.http_status == http_status), Internal
    )
    return cls(error.get("message"), hint=error.get("hint"), details=error.get("details"))


def _tree(cls: type[ShoalError]) -> Iterator[type[ShoalError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _tree(sub)


BY_CODE: dict[str, type[ShoalError]] = {c.code: c for c in _tree(ShoalError)}
"""Error code → class."""
