"""The thread that sends the records of all outboxes to the server, in order and each exactly once by its number.

A stream is given up when the server will not accept it: its attempt was replaced, or the server has not known the job for
_FORGOTTEN_S. In the second case it is tried again every _FORGOTTEN_RETRY_S, as the server may have been restored. Everything else
is tried again as long as this process lives, each stream with its own waits. A single record that the server rejects as
malformed is replaced by a notice, so that it does not block the following ones.

Why this is safe: only the shipping thread changes the streams and calls `read` and `ack`. Other threads append to an outbox
and set `_news`, which is cleared before the outboxes are read, so an append in between causes another round. Nothing exists
only in this thread: a batch stays in its outbox until the server has confirmed it. If the answer is lost, the batch is sent
again, the server answers with the number it expects (`OutOfSequence`), and the outbox continues there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from shoal.agent.link import Link, backoff, pause_after
from shoal.agent.outbox.outbox import SEGMENT_BYTES, Batch, Outbox, notice
from shoal.core.errors import AuthError, Fenced, NotFound, OutOfSequence, ShoalError, Unreachable, UsageError

logger = logging.getLogger(__name__)

SHIP_EVERY_S = 0.5
_SHIP_FIRST_S = 0.01
_WAITS_S = (0.2, 30.0)
"""Seconds between two tries of a stream that was refused: the first and the longest wait."""
_OUTAGE_WAITS_S = (0.2, 5.0)
_FORGOTTEN_S = 30.0
"""Seconds of refused tokens after which a stream is given up; shorter refusals may be a server restart."""
_FORGOTTEN_RETRY_S = 300.0
_HELD_EVERY_S = 1.0


class _Stream:
    """State of one stream's delivery. Only the shipping thread changes it."""

    def __init__(self, name: str, outbox: Outbox):
        self.name, self.outbox = name, outbox
        self.given_up = False
        """True if nobody should wait for the rest of this stream."""
        self.fenced = False
        """True if the attempt was replaced, so that the server will never accept any more."""
        self.batch_bytes = SEGMENT_BYTES
        self.not_before = 0.0
        self.unknown_since: float | None = None
        self.said: set[str] = set()
        self._waits: Iterator[float] | None = None

    def wait(self) -> None:
        """Set the time of the next try; each wait is longer than the one before."""
        self._waits = self._waits or backoff(*_WAITS_S)
        self.not_before = time.monotonic() + next(self._waits)

    def confirmed(self, next_seq: int) -> None:
        """Acknowledge records and reset the waits after the server has accepted a batch."""
        self.outbox.ack(next_seq)
        self.given_up = False
        self._waits = self.unknown_since = None
        self.not_before = 0.0
        self.batch_bytes = min(2 * self.batch_bytes, SEGMENT_BYTES)


class Shipper(threading.Thread):
    """Thread that sends all streams until the process ends."""

    def __init__(self, link: Link, outboxes: dict[str, Outbox], say: Callable[[str], None] = lambda text: None):
        """Set up the thread. `say` adds a line from Shoal itself to the job's output."""
        super().__init__(name="shipper", daemon=True)
        self._link, self._say = link, say
        self._streams = [_Stream(name, outbox) for name, outbox in outboxes.items()]
        self._news = threading.Event()
        self._lock = threading.Condition()
        self._hurry = threading.Event()
        for outbox in outboxes.values():
            outbox.on_append = self._news.set

    @property
    def done(self) -> bool:
        """True if nothing is left to send, apart from streams that were given up."""
        return all(stream.given_up or stream.outbox.empty for stream in self._streams)

    def drained(self, timeout_s: float) -> bool:
        """Wait until everything is sent; return False after the timeout. Call it when no more records are appended."""
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
            # The first record after a pause is sent at once; the following ones are collected for SHIP_EVERY_S.
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
                time.sleep(pause_after(error, next(waits)))
            with self._lock:
                self._lock.notify_all()

    def _next_try_s(self) -> float | None:
        """Return the seconds until the next try if no record is appended; None if nothing is waiting."""
        waiting = [s for s in self._streams if not s.fenced and not s.outbox.empty]
        if not waiting:
            return None
        return max(_HELD_EVERY_S / 10, min(max(s.not_before - time.monotonic(), 0.0) or _HELD_EVERY_S for s in waiting))

    def _ship_round(self, compress: Callable[[bytes], bytes]) -> bool:
        """Send one batch of each stream, so that a flood in one does not delay the others; return False if there was none."""
        shipped = False
        for stream in self._streams:
            if stream.fenced or time.monotonic() < stream.not_before:
                continue
            if (batch := stream.outbox.read(stream.batch_bytes)) is not None:
                self._ship(stream, batch, compress)
                shipped = True
        return shipped

    def _ship(self, stream: _Stream, batch: Batch, compress: Callable[[bytes], bytes]) -> None:
        path = f"/segments/{stream.name}?seq_first={batch.first}&count={batch.records}"
        try:
            stream.confirmed(int(self._link.post_bytes(path, compress(batch.body))["next_seq"]))
        except OutOfSequence as error:
            stream.outbox.ack(int(error.details["next_seq"]))
        except Unreachable:
            raise
        except UsageError as error:
            self._narrow(stream, batch, error, compress)
        except ShoalError as error:
            self._refused(stream, error)

    def _narrow(self, stream: _Stream, batch: Batch, error: UsageError, compress: Callable[[bytes], bytes]) -> None:
        """Halve the batch until the record that the server rejects is alone; then send a notice with its number instead."""
        if batch.records > 1:
            stream.batch_bytes = max(1, len(batch.body) // 2)
            return
        body = b'{"s":%d,%s' % (batch.first, notice(1, f"the server refused it ({error.message})")[1:])
        path = f"/segments/{stream.name}?seq_first={batch.first}&count=1"
        try:
            stream.confirmed(int(self._link.post_bytes(path, compress(body))["next_seq"]))
        except OutOfSequence as other:
            stream.outbox.ack(int(other.details["next_seq"]))
        except Unreachable:
            raise
        except ShoalError as other:
            self._refused(stream, other)
            return
        self._warn_once(stream, f"the server rejected a record of the stream '{stream.name}': {error.message}")

    def _refused(self, stream: _Stream, error: ShoalError) -> None:
        now = time.monotonic()
        stream.wait()
        if isinstance(error, Fenced):
            stream.fenced = True
            self._give_up(stream, error)
        elif isinstance(error, AuthError | NotFound):
            stream.unknown_since = stream.unknown_since or now
            if now - stream.unknown_since >= _FORGOTTEN_S:
                stream.not_before = now + _FORGOTTEN_RETRY_S
                self._give_up(stream, error)
        else:
            text = f"the server does not accept the stream '{stream.name}' now; it will be sent again later: {error.message}"
            self._warn_once(stream, text)

    def _give_up(self, stream: _Stream, error: ShoalError) -> None:
        stream.given_up = True
        self._warn_once(
            stream, f"the stream '{stream.name}' ends here; the server accepts no more of it: {error.message}"
        )

    def _warn_once(self, stream: _Stream, text: str) -> None:
        """Add a warning to the job's output and to our own log, once."""
        if text not in stream.said:
            stream.said.add(text)
            logger.warning("%s", text)
            self._say(f"[shoal] {text}")
