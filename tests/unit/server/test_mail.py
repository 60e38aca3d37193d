"""Reminders by e-mail: to a real SMTP server of the test's own, again when it fails, and never in the way of the clock."""

import socketserver
import threading
from datetime import timedelta
from email import message_from_bytes

import pytest
from sqlalchemy import update

from shoal.core.leases import LeaseRequest
from shoal.core.schema import utcnow
from shoal.server.jobs import service as jobs
from shoal.server.leases import service as leases
from shoal.server.leases.clock import LeaseClock
from shoal.server.mail import Letter, Mailer, deliver
from shoal.server.models.leases import Lease
from shoal.server.people import admin
from shoal.testing.engines import eventually

GOOD, LATER, NEVER = "250 taken", "451 try later", "550 no such person"


class Post(socketserver.ThreadingTCPServer):
    """Speaks SMTP as RFC 5321 has it; `answers` are given to one letter after the other, the last to all that follow."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Talk)
        self.answers, self.letters, self.tries = [GOOD], [], 0
        self.open = threading.Event()
        self.open.set()

    @property
    def url(self):
        return f"smtp://127.0.0.1:{self.server_address[1]}"


class _Talk(socketserver.StreamRequestHandler):
    def handle(self):
        self.server.open.wait(60)
        self.say("220 here")
        for line in self.rfile:
            word = line.split()[0].upper()
            if word == b"EHLO":
                self.say("250 here")
            elif word == b"DATA":
                self.say("354 go on")
                self.take(b"".join(iter(self.rfile.readline, b".\r\n")))
            elif word == b"QUIT":
                self.say("221 bye")
                return
            else:
                self.say("250 fine")

    def take(self, letter):
        post = self.server
        answer = post.answers[min(post.tries, len(post.answers) - 1)]
        post.tries += 1
        if answer == GOOD:
            post.letters.append(message_from_bytes(letter))
        self.say(answer)

    def say(self, text):
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def post():
    with Post() as post:
        threading.Thread(target=post.serve_forever, args=(0.01,), daemon=True).start()
        yield post
        post.open.set()
        post.shutdown()


@pytest.fixture
def box(ctx, anna, post, monkeypatch):
    """Anna's lease, which ends in less than an hour, on a server that sends mail."""
    monkeypatch.setattr(ctx.gateway, "demand", lambda: None)
    ctx.mail = Mailer(post.url, "shoal@example.org", pauses_s=(0.0, 0.0))
    lease = leases.rent(ctx, anna.access(), LeaseRequest(name="box", time_s=7200))
    soon = update(Lease).values(expires_at=utcnow() + timedelta(minutes=59))
    ctx.db.write(lambda session: session.execute(soon) and None)
    yield lease
    ctx.mail.close()


def events(ctx, anna, lease, kind):
    return [event.message for event in jobs.get(ctx, anna.access(), lease.job).events if event.kind == kind]


def test_the_one_who_rented_is_written_to_once(ctx, anna, post, box):
    clock = LeaseClock(ctx)
    clock.handle_due(utcnow())
    clock.handle_due(utcnow())
    eventually(lambda: post.letters)
    clock.handle_due(utcnow())
    [letter] = post.letters
    assert (letter["To"], letter["From"]) == (anna.email, "shoal@example.org")
    assert letter["Subject"] == "Lease 'box' ends in 59 min"
    assert "shoal machine extend box --time 8h" in letter.get_payload()
    assert len(events(ctx, anna, box, "ends_soon")) == 1 and events(ctx, anna, box, "mail_failed") == []


def test_a_server_that_refuses_for_now_is_asked_again(ctx, anna, post, box):
    post.answers = [LATER, LATER, GOOD]
    LeaseClock(ctx).handle_due(utcnow())
    eventually(lambda: post.letters)
    assert post.tries == 3 and events(ctx, anna, box, "mail_failed") == []


def test_one_that_never_takes_it_is_asked_three_times_and_the_job_tells(ctx, anna, post, box):
    post.answers = [NEVER]
    LeaseClock(ctx).handle_due(utcnow())
    eventually(lambda: events(ctx, anna, box, "mail_failed"))
    assert events(ctx, anna, box, "mail_failed") == [f"no reminder was sent to {anna.email}: {NEVER}"]
    assert post.tries == 3


def test_the_clock_does_not_wait_for_a_server_that_says_nothing(ctx, anna, post, box):
    post.open.clear()
    LeaseClock(ctx).handle_due(utcnow())
    assert len(events(ctx, anna, box, "ends_soon")) == 1 and post.letters == []
    post.open.set()
    eventually(lambda: post.letters)


def test_without_a_server_to_send_it_nothing_is_tried(ctx, anna, box):
    ctx.mail = Mailer("", "")
    LeaseClock(ctx).handle_due(utcnow())
    assert len(events(ctx, anna, box, "ends_soon")) == 1 and events(ctx, anna, box, "mail_failed") == []


def test_a_name_with_a_line_break_makes_no_header(post):
    letter = Letter("a@example.org", "Lease\r\nBcc: b@example.org", "", lambda why: None)
    with pytest.raises(ValueError, match=r"linefeed|newline"):
        deliver(post.url, "", letter)
    assert post.tries == 0


def test_what_cannot_be_reached_or_read_is_an_error_and_no_password_leaves_without_tls(post, monkeypatch):
    letter = Letter("a@example.org", "hello", "", lambda why: None)
    for url in ("http://example.org", "smtp://", "smtp://127.0.0.1:99999"):
        with pytest.raises(ValueError, match=r"smtp_url|[Pp]ort"):
            deliver(url, "", letter)
    monkeypatch.setattr("shoal.server.mail._is_loopback", lambda host: False)
    with pytest.raises(ValueError, match="offers no TLS") as refused:
        deliver(post.url.replace("//", "//me:hunter2@"), "", letter)
    assert "hunter2" not in str(refused.value) and post.tries == 0


def test_admins_see_which_server_sends_but_not_its_password(ctx):
    object.__setattr__(ctx.settings, "smtp_url", "smtp://me:hunter2@mail.example.org")
    assert admin.limits(ctx).fixed["smtp_url"] == "mail.example.org"
