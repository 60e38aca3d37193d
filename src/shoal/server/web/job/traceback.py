"""Traceback of a failed job, read from its log, for the top of its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shoal.core.jobs import JobView, LogLine
from shoal.core.schema import View
from shoal.core.states import JobState
from shoal.server.context import Context
from shoal.server.policy import Access
from shoal.server.web.job import log_search, logs

_START = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_MOST_LINES = 200


class Trace(View):
    """Traceback of one worker."""

    attempt: int
    node: int
    rank: int | None
    text: str


def from_log(ctx: Context, access: Access, job: JobView) -> Trace | None:
    """Return the first traceback of a failed job's last attempt: later ones are mostly of workers that lost the first."""
    if job.status != JobState.FAILED or not job.attempt_list:
        return None
    last = logs.Filter(attempt=job.attempts)
    found = log_search.search(ctx, access, job.id, last, _START, limit=1).hits
    if not found:
        return None
    line = found[0].line
    same = logs.Filter(attempt=line.attempt, node=line.node, rank=line.rank)
    following = logs.following(ctx, access, job.id, same, found[0].at)
    text = "\n".join(lines_of_one(following.lines)).rstrip()
    return Trace(attempt=line.attempt, node=line.node, rank=line.rank, text=text)


def lines_of_one(lines: Iterable[LogLine]) -> Iterator[str]:
    """Yield the lines of the traceback with which `lines` begins, with the exceptions it was raised from."""
    inside = True
    for number, line in enumerate(lines):
        text = line.text
        begins = _START in text or text.startswith(_CHAINED)
        if number >= _MOST_LINES or not (inside or begins or not text.strip()):
            return
        yield text
        # Frames are indented; the first line that is not, names the exception. Groups are drawn with bars.
        inside = begins or text.startswith((" ", "|", "+")) if text.strip() else inside
