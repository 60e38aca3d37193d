"""E-mail to people over the configured SMTP server. It is sent by a thread of its own, so that a slow server delays nobody."""

from __future__ import annotations

import heapq
import ipaddress
import itertools
import logging
import smtplib
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from urllib.parse import SplitResult, unquote, urlsplit

from shoal.core.background_loops import Loop, Loops

logger = logging.getLogger(__name__)

PAUSES_S = (30.0, 300.0)
"""Seconds before the second and the third try."""
_TIMEOUT_S = 20.0
_MOST_WAITING = 1_000
_IDLE_S = 3_600.0
_BOUND_S = 300.0
_PORTS = {"smtp": 25, "smtps": 465}
_SUBMISSION = 587


@dataclass(frozen=True, slots=True)
class Letter:
    """E-mail to one person."""

    to: str
    subject: str
    text: str
    on_failed: Callable[[str], None]
    """Called with the reason after the last try has failed, in the thread that sends."""


class Mailer:
    """Queue of e-mails, and the loop that sends them.

    `_changed` protects the queue and `_closing`. Only the loop's thread takes e-mails from the queue, one at a time, and no lock
    is held while it speaks with the mail server, so `send` never waits for the network. An e-mail is in memory only: after a crash
    it is lost, and the event that caused it stays in the job's history.
    """

    def __init__(self, url: str, sender: str, pauses_s: Sequence[float] = PAUSES_S, *, loops: Loops | None = None):
        """`url`: the SMTP server; without one nothing is sent."""
        self._url, self._sender, self._pauses_s = url, sender, pauses_s
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, int, Letter]] = []
        self._numbers = itertools.count()
        self._loops = loops or Loops()
        self._loop: Loop | None = None
        self._closing = False

    @property
    def is_set_up(self) -> bool:
        """True if there is a mail server to send to."""
        return bool(self._url)

    def send(self, letter: Letter) -> None:
        """Queue an e-mail and return at once. May be called from any thread."""
        if not self._url:
            return
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING or self._closing:
                logger.warning("mail to %s: too many are waiting", letter.to)
                return
            self._put(time.monotonic(), 0, letter)
            if self._loop is None:
                self._loop = Loop(
                    "mail", self._send_due, wait=self._wait, is_closing=lambda: self._closing, bound_s=_BOUND_S
                )
                self._loops.start(self._loop)

    def close(self) -> None:
        """Stop sending; queued e-mails are dropped. Waits for at most a second for the one being sent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._loop is not None:
            self._loop.stop(1.0)

    def _put(self, due: float, tries: int, letter: Letter) -> None:
        heapq.heappush(self._waiting, (due, next(self._numbers), tries, letter))
        self._changed.notify_all()

    def _send_due(self) -> float:
        """Send the e-mail that is due, if any; return the seconds until the next one is due."""
        with self._changed:
            left_s = self._waiting[0][0] - time.monotonic() if self._waiting else _IDLE_S
            if left_s > 0:
                return left_s
            _, _, tries, letter = heapq.heappop(self._waiting)
        self._try(letter, tries)
        return 0.0

    def _wait(self, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or (self._waiting and self._waiting[0][0] <= time.monotonic()), pause_s
            )

    def _try(self, letter: Letter, tries: int) -> None:
        try:
            deliver(self._url, self._sender, letter)
            return
        except Exception as error:  # any error: it is tried again, and the sender is told after the last try
            why = _words(error)
        logger.warning("mail to %s (try %d of %d): %s", letter.to, tries + 1, len(self._pauses_s) + 1, why)
        if tries < len(self._pauses_s):
            with self._changed:
                self._put(time.monotonic() + self._pauses_s[tries], tries + 1, letter)
            return
        try:
            letter.on_failed(why)
        except Exception:
            logger.exception("mail")


def deliver(url: str, sender: str, letter: Letter) -> None:
    server = urlsplit(url)
    if server.scheme not in _PORTS or not server.hostname:
        raise ValueError("smtp_url should look like smtp://user:password@mail.example.org")
    message = EmailMessage()
    message["From"] = sender or f"shoal@{server.hostname}"
    message["To"], message["Subject"] = letter.to, letter.subject
    message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain=server.hostname)
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(letter.text)
    with _connect(server) as smtp:
        smtp.send_message(message)


def _connect(server: SplitResult) -> smtplib.SMTP:
    host, context = server.hostname or "", ssl.create_default_context()
    port = server.port or (_SUBMISSION if server.scheme == "smtp" and server.username else _PORTS[server.scheme])
    if server.scheme == "smtps":
        smtp: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=_TIMEOUT_S, context=context)
    else:
        smtp = smtplib.SMTP(host, port, timeout=_TIMEOUT_S)
        smtp.ehlo()
        if smtp.has_extn("starttls"):
            smtp.starttls(context=context)
            smtp.ehlo()
        elif server.username and not _is_loopback(host):
            smtp.close()
            raise ValueError(f"{host} offers no TLS, and a password is only sent over TLS")
    if server.username:
        smtp.login(unquote(server.username), unquote(server.password or ""))
    return smtp


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _words(error: Exception) -> str:
    """Describe an error without the password: smtplib's errors contain only the server's answers."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "; ".join(f"{code} {text.decode(errors='replace')}" for code, text in error.recipients.values())
    if isinstance(error, smtplib.SMTPResponseException):
        answer = error.smtp_error
        return f"{error.smtp_code} {answer.decode(errors='replace') if isinstance(answer, bytes) else answer}"
    return str(error) or type(error).__name__
