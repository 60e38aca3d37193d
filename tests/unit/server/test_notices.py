"""Notifications: what rules match, to whom it is told, and deliveries to a real receiver that fails, is slow or lies."""

import functools
import http.server
import json
import threading
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from web_run import Run

from shoal.core.errors import Forbidden, InvalidSpec, NotFound
from shoal.core.notices import RuleSave
from shoal.core.people import Role
from shoal.core.schema import utcnow
from shoal.server.jobs.events import record_event
from shoal.server.models.jobs import Job
from shoal.server.models.ledger import LedgerEntry
from shoal.server.models.notices import NoticeDelivery
from shoal.server.models.pool import DrainedDevice
from shoal.server.notices import loop, payloads, rules
from shoal.server.notices.loop import NoticeLoop
from shoal.testing.server import add_member, add_person


class Receiver:
    """Web server that records what it gets, and answers with the next of `answers`, then 200."""

    def __init__(self, *answers):
        self.got, self.answers = [], list(answers)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((dict(self.headers), body))
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def private(ctx):
    """A private server may send to its own machine."""
    ctx.private = True
    return ctx


def rule(ctx, person, kind, *, url=None, type="webhook", **fields):
    channels = [{"type": type, "to": url}] if url else []
    return rules.add(ctx, person.access(), RuleSave(kind=kind, channels=channels, **fields))


def told(ctx, person):
    return [notice.title for notice in rules.inbox(ctx, person.access().principal).notices]


def look(ctx):
    made = NoticeLoop(ctx, "http://shoal.example.org/")
    made.evaluate()
    return made


def test_jobs_that_end_fail_or_stall_are_told_once_and_only_what_came_after_the_rule(ctx, anna):
    Run(ctx, anna, "early").become("starting", "running", "failed", reason="old")
    for kind in ("job_ended", "job_failed", "job_stalled"):
        rule(ctx, anna, kind)
    rule(ctx, anna, "job_failed", jobs="other-*")
    Run(ctx, anna, "good").become("starting", "running", "succeeded")
    bad = Run(ctx, anna, "bad")
    ctx.db.write(lambda s: record_event(s, s.get_one(Job, bad.id), "stalled", "no progress for 30 min", attempt=1))
    bad.become("starting", "running", "failed", reason="out of memory")
    made = look(ctx)
    assert sorted(told(ctx, anna)) == ["bad failed", "bad stalled", "good succeeded"]
    ctx.live.job_changed(bad.id)
    made.evaluate()
    look(ctx)  # as after a restart
    assert len(told(ctx, anna)) == 3
    found = rules.inbox(ctx, anna.access().principal)
    assert found.unread == 3 and "out of memory" in [n.text for n in found.notices]
    rules.mark_read(ctx, anna.access().principal)
    assert rules.inbox(ctx, anna.access().principal).unread == 0


def test_metrics_above_below_and_not_finite_are_told_once_per_run(ctx, anna):
    rule(ctx, anna, "metric_above", metric="loss", value=5)
    rule(ctx, anna, "metric_below", metric="acc", value=0.1, jobs="run-*")
    rule(ctx, anna, "metric_nan")
    first, second = Run(ctx, anna, "run-1"), Run(ctx, anna, "second")
    made = look(ctx)
    first.steps(0, 3, loss=lambda i: 4.0 + i, acc=lambda i: 0.05)
    second.steps(0, 3, loss=lambda i: 1.0, acc=lambda i: 0.05)
    second.send("metric", {"k": "s", "i": 9, "v": {"grad": "nan"}})
    for _ in range(2):
        for run in (first, second):
            ctx.live.job_changed(run.id)
        made.evaluate()
    assert sorted(told(ctx, anna)) == [
        "run-1: acc is 0.05, below 0.1",
        "run-1: loss is 6, above 5",
        "second: grad is not a finite number",
    ]


def test_budgets_and_drained_devices_are_told(ctx, anna):
    rule(ctx, anna, "budget", value=0.5)
    rule(ctx, anna, "device_drained")
    run = Run(ctx, anna, "costly", budget="1h")

    def work(session):
        later = utcnow() + timedelta(seconds=1)
        session.add(DrainedDevice(machine="m1", device="GPU-1", since=later, reason="ECC"))
        session.add(
            LedgerEntry(
                seq=1, previous="", hash="h", workspace_id=anna.workspace_id, job_id=run.id,
                job="costly", person=anna.email, attempt=1, machine="m", kind="cpu", slots=1, price=0, currency="EUR",
                attempt_id="att_1", node=0, start_ms=0, end_ms=2_160_000, slot_ms=2_160_000, cost=0,
            )
        )  # fmt: skip

    ctx.db.write(work)
    look(ctx)
    assert sorted(told(ctx, anna)) == ["A device of m1 was drained", "costly has used 60% of its budget"]


def test_a_shared_rule_tells_all_members_and_an_own_one_only_its_person(ctx, anna, berta):
    ola, gone = add_person(ctx, "ola@example.org"), add_person(ctx, "gone@example.org")
    add_member(ctx, anna.workspace_id, ola, Role.VIEWER)
    rule(ctx, anna, "job_failed", shared=True)
    rule(ctx, anna, "job_ended")
    Run(ctx, anna, "bad").become("starting", "running", "failed")
    look(ctx)
    assert [told(ctx, who) for who in (anna, ola, gone, berta)] == [["bad failed"], ["bad failed"], [], []]
    own = rules.list_rules(ctx, ola.access(workspace_id=anna.workspace_id, role=Role.VIEWER))
    assert [one.kind for one in own] == ["job_failed"]
    with pytest.raises(Forbidden):
        rules.add(
            ctx, ola.access(workspace_id=anna.workspace_id, role=Role.VIEWER), RuleSave(kind="job_ended", shared=True)
        )
    with pytest.raises(NotFound):
        rules.remove(ctx, berta.access(), own[0].id)


def test_a_webhook_is_signed_and_tried_again_until_it_arrives(private, anna, receiver):
    receiver.answers += [500, 302, 200]
    made = rule(private, anna, "job_failed", url=receiver.url)
    Run(private, anna, "bad").become("starting", "running", "failed", reason="<b>")
    sender = NoticeLoop(private, "http://shoal.example.org/", pauses_s=(0.0, 0.0))
    sender.evaluate()
    for number, error in enumerate(("HTTP 500", "HTTP 302", None), 1):
        sender.send()
        last = rules.list_rules(private, anna.access())[0].last_error
        assert len(receiver.got) == number and (last is None if error is None else error in last)
    sender.send()
    assert len(receiver.got) == 3
    (first, body), *others = receiver.got
    assert {headers["Shoal-Delivery"] for headers, _ in receiver.got} == {first["Shoal-Delivery"]}
    signed = f"v1={payloads.signature(made.secret, int(first['Shoal-Timestamp']), body)}"
    assert (
        first["Shoal-Signature"] == signed
        and signed != f"v1={payloads.signature('other', int(first['Shoal-Timestamp']), body)}"
    )
    told_of = json.loads(body)
    assert (told_of["kind"], told_of["job"]["name"], told_of["job"]["status"]) == ("job_failed", "bad", "failed")
    assert told_of["url"].startswith("http://shoal.example.org/w/") and others


def test_a_receiver_that_is_away_is_given_up_after_the_last_try(private, anna, receiver):
    rule(private, anna, "job_ended", url=receiver.url.replace("/hook", ""))
    receiver.answers += [503] * 9
    Run(private, anna, "good").become("starting", "running", "succeeded")
    sender = NoticeLoop(private, "http://x", pauses_s=(0.0,))
    sender.evaluate()
    for _ in range(4):
        sender.send()
    with private.db.read() as session:
        (row,) = session.scalars(select(NoticeDelivery)).all()
    assert (row.state, row.tries, len(receiver.got)) == ("failed", 2, 2)


@pytest.mark.parametrize(("type", "key"), [("slack", "text"), ("discord", "content")])
def test_slack_and_discord_get_their_own_shape_without_mentions(private, anna, receiver, type, key):
    made = rule(private, anna, "job_failed", url=receiver.url, type=type)
    with private.db.read() as session:
        row = rules.find(session, anna.access(), made.rule.id)
        session.expunge(row)
    loop.test(private, row)
    Run(private, anna, "bad").become("starting", "running", "failed", reason="<!channel> & @everyone")
    sender = NoticeLoop(private, "http://shoal.example.org")
    sender.evaluate()
    sender.send()
    texts = [json.loads(body) for _, body in receiver.got]
    assert len(texts) == 2 and "Test of a notification" in texts[0][key]
    assert "Shoal-Signature" not in receiver.got[0][0]
    if type == "slack":
        assert "&lt;!channel&gt; &amp;" in texts[1]["text"]
    else:
        assert texts[1]["allowed_mentions"] == {"parse": []}


def test_a_shared_server_sends_nothing_to_its_own_network_and_no_mail_to_strangers(ctx, anna, receiver):
    ctx.private = False
    with pytest.raises(InvalidSpec):
        rule(ctx, anna, "job_failed", url=receiver.url)
    with pytest.raises(InvalidSpec, match="not a member"):
        rule(ctx, anna, "job_failed", url="stranger@example.org", type="email")
    made = rule(ctx, anna, "job_failed", url="http://hook.example.org/x")
    change = update(NoticeDelivery).values(to=receiver.url)
    Run(ctx, anna, "bad").become("starting", "running", "failed")
    sender = NoticeLoop(ctx, "http://x")
    sender.evaluate()
    ctx.db.write(lambda s: s.execute(change) and None)  # as if its name led there by now
    sender.send()
    assert receiver.got == [] and "private network" in rules.list_rules(ctx, anna.access())[0].last_error
    assert made.rule.channels[0].type == "webhook"


def test_mail_goes_to_those_whom_the_rule_is_for(ctx, anna, monkeypatch):
    letters = []
    monkeypatch.setattr(ctx.mail, "send", letters.append)
    ola = add_person(ctx, "ola@example.org")
    add_member(ctx, anna.workspace_id, ola, Role.MEMBER)
    rules.add(ctx, anna.access(), RuleSave(kind="job_failed", shared=True, channels=[{"type": "email"}]))
    Run(ctx, anna, "bad").become("starting", "running", "failed", reason="why")
    sender = look(ctx)
    sender.send()
    assert sorted(letter.to for letter in letters) == [anna.email, "ola@example.org"]
    assert letters[0].subject == "bad failed" and "why" in letters[0].text
    functools.reduce(lambda _, letter: letter.on_failed("refused"), letters, None)
    assert rules.list_rules(ctx, anna.access())[0].last_error == "refused"


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "metric_above"},
        {"kind": "budget", "value": 2},
        {"kind": "job_failed", "channels": [{"type": "slack", "to": "x"}]},
    ],
)
def test_a_rule_without_what_it_needs_is_refused(fields):
    with pytest.raises(ValueError, match=r"needs|share"):
        RuleSave(**fields)
