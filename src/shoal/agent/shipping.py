"""The thread that brings spooled records to the server, in order and each exactly once by its number.

A stream is given up only when the server will never take it: its attempt was replaced, or the server has long forgotten the
job. Everything else is tried again for as long as this process lives, each stream at its own pace. A single record that the
server calls malformed is replaced by a notice, so that it does not block those behind it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from shoal.agent.link import Link, backoff
from shoal.agent.spool import SEGMENT_BYTES, Batch, Spool, notice
from shoal.core.errors import AuthError, Fenced, NotFound, OutOfSequence, ShoalError, Unreachable, UsageError

logger = logging.getLogger(__name__)

SHIP_EVERY_S = 0.5
_SHIP_FIRST_S = 0.01
_WAITS_S = (0.2, 30.0)
"""Between two tries of a stream that was refused: the first, and the longest."""
_OUTAGE_WAITS_S = (0.2, 5.0)
_FORGOTTEN_S = 30.0
"""A server that does not know our token for so long has truly forgotten us; less may be a restart."""
_HELD_EVERY_S = 1.0


class _Stream:
    """One stream's way to the server. Only the shipping thread changes it."""

    def __init__(self, name: str, spool: Spool):
        self.name, self.spool = name, spool
        self.given_up = False
        self.batch_bytes = SEGMENT_BYTES
        self.not_before = 0.0
        self.unknown_since: float | None = None
        self.said: set[str] = set()
        self._waits: Iterator[float] | None = None

    def wait(self) -> None:
        """Leave it alone for a while, longer each time."""
        self._waits = self._waits or backoff(*_WAITS_S)
        self.not_before = time.monotonic() + next(self._waits)

    def taken(self, next_seq: int) -> None:
        self.spool.ack(next_seq)
        self._waits = self.unknown_since = None
        self.not_before = 0.0
        self.batch_bytes = min(2 * self.batch_bytes, SEGMENT_BYTES)


class Shipper(threading.Thread):
    def __init__(self, link: Link, spools: dict[str, Spool], say: Callable[[str], None] = lambda text: None):
        """`say` adds a line of Shoal's own to the job's output."""
        super().__init__(name="shipper", daemon=True)
        self._link, self._say = link, say
        self._streams = [_Stream(name, spool) for name, spool in spools.items()]
        self._news = threading.Event()
        self._lock = threading.Condition()
        self._hurry = threading.Event()
        for spool in spools.values():
            spool.on_append = self._news.set

    @property
    def done(self) -> bool:
        """Nothing is left that the server would take."""
        return all(stream.given_up or stream.spool.empty for stream in self._streams)

    def drained(self, timeout_s: float) -> bool:
        """Wait until everything is shipped; called when nothing more is coming."""
        self._hurry.set()
        self._news.set()
        with self._lock:
            return self._lock.wait_for(lambda: self.done, timeout_s)

    def run(self) -> None:
        import zstandard

        compress = zstandard.ZstdCompressor(level=3).compress
        waits, last, said = backoff(*_OUTAGE_WAITS_S), 0.0, ""
        while True:
            self._news.wait(self._next_try_s())
            # The first line after a silence goes out at once; what follows it travels together.
            self._hurry.wait(max(_SHIP_FIRST_S, SHIP_EVERY_S - (time.monotonic() - last)))
            self._news.clear()
            try:
                while self._ship_round(compress):
                    pass
                waits, last, said = backoff(*_OUTAGE_WAITS_S), time.monotonic(), ""
            except Exception as error:  # an outage, or a disk that cannot be read: neither may end this thread
                if str(error) != said:
                    logger.warning("shipping: %s", error, exc_info=not isinstance(error, ShoalError))
                said = str(error)
                self._news.set()
                time.sleep(next(waits))
            with self._lock:
                self._lock.notify_all()

    def _next_try_s(self) -> float | None:
        """Seconds until something is to be tried again without any news; None if nothing is."""
        waiting = [s for s in self._streams if not s.given_up and not s.spool.empty]
        if not waiting:
            return None
        return max(_HELD_EVERY_S / 10, min(max(s.not_before - time.monotonic(), 0.0) or _HELD_EVERY_S for s in waiting))

    def _ship_round(self, compress: Callable[[bytes], bytes]) -> bool:
        """A batch of each stream: a flood of one must not hold up the others. False when there was none."""
        shipped = False
        for stream in self._streams:
            if stream.given_up or time.monotonic() < stream.not_before:
                continue
            if (batch := stream.spool.read(stream.batch_bytes)) is not None:
                self._ship(stream, batch, compress)
                shipped = True
        return shipped

    def _ship(self, stream: _Stream, batch: Batch, compress: Callable[[bytes], bytes]) -> None:
        path = f"/segments/{stream.name}?seq_first={batch.first}&count={batch.records}"
        try:
            stream.taken(int(self._link.post_bytes(path, compress(batch.body))["next_seq"]))
        except OutOfSequence as error:
            stream.spool.ack(int(error.details["next_seq"]))
        except Unreachable:
            raise
        except UsageError as error:
            self._narrow(stream, batch, error, compress)
        except ShoalError as error:
            self._refused(stream, error)

    def _narrow(self, stream: _Stream, batch: Batch, error: UsageError, compress: Callable[[bytes], bytes]) -> None:
        """Look for the record that cannot be taken; once it is alone, a notice takes its number."""
        if batch.records > 1:
            stream.batch_bytes = max(1, len(batch.body) // 2)
            return
        body = b'{"s":%d,%s' % (batch.first, notice(1, f"the server refused it ({error.message})")[1:])
        path = f"/segments/{stream.name}?seq_first={batch.first}&count=1"
        try:
            stream.taken(int(self._link.post_bytes(path, compress(body))["next_seq"]))
        except OutOfSequence as other:
            stream.spool.ack(int(other.details["next_seq"]))
        except Unreachable:
            raise
        except ShoalError as other:
            self._refused(stream, other)
            return
        self._tell(stream, f"a record of the stream '{stream.name}' was not taken: {error.message}")

    def _refused(self, stream: _Stream, error: ShoalError) -> None:
        now = time.monotonic()
        stream.wait()
        if isinstance(error, Fenced):
            self._give_up(stream, error)
        elif isinstance(error, AuthError | NotFound):
            stream.unknown_since = stream.unknown_since or now
            if now - stream.unknown_since >= _FORGOTTEN_S:
                self._give_up(stream, error)
        else:
            text = f"the server does not take the stream '{stream.name}' now, so it is kept and sent again: {error.message}"
            self._tell(stream, text)

    def _give_up(self, stream: _Stream, error: ShoalError) -> None:
        stream.given_up = True
        self._tell(stream, f"the stream '{stream.name}' ends here, the server takes no more of it: {error.message}")

    def _tell(self, stream: _Stream, text: str) -> None:
        """In the job's output and our own log, once."""
        if text not in stream.said:
            stream.said.add(text)
            logger.warning("%s", text)
            self._say(f"[shoal] {text}")
