"""The ledger by itself: a flipped byte is found and named, its clock does not jump, and what came before it is taken over."""

import sqlite3
from datetime import timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import select

from shoal.core.schema import utcnow
from shoal.core.states import NodeState
from shoal.server.billing import ledger, ledger_check
from shoal.server.billing import service as billing
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.db import Database
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.models.ledger import LedgerEntry, OpenSpan
from shoal.testing.server import add_job, add_node

ENTRIES = 5
HURT = 3


class Clock:
    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def written(ctx):
    """Five entries, each with names of its own."""
    clock = Clock(1.8e9)
    ctx.usage_clock = usage_clock = UsageClock(wall_s=clock, boot_s=clock, boot="b")
    for n in range(1, ENTRIES + 1):
        span = OpenSpan(
            attempt_id=f"att_number-{n}", node=0, workspace_id=f"ws_number-{n}", job_id=f"job_number-{n}", job=f"job-{n}",
            person=f"person-{n}@example.org", attempt=n, machine=f"machine-{n}", kind="cuda", slots=n, price=1_200_000,
            currency="EUR",
        )  # fmt: skip
        ctx.db.write(lambda s, made=span: s.add(made))
        usage_clock.record_message(f"att_number-{n}", 0)
        ctx.db.write(lambda s: ledger.renew(s, usage_clock))
        clock.now += 25
        ctx.db.write(lambda s, n=n: ledger.end_node(s, usage_clock, f"att_number-{n}", 0, timeout_s=30))
    with ctx.db.read() as session:
        return session.scalars(select(LedgerEntry).order_by(LedgerEntry.seq)).all()


def test_one_flipped_byte_of_the_file_is_found_and_named(ctx, written):
    path, entry = ctx.db.path, written[HURT - 1]
    ctx.db.close()
    with sqlite3.connect(path) as connection:  # no copies of the rows in pages that are free
        connection.execute("VACUUM")
    connection.close()
    sound = path.read_bytes()
    assert verified(path).whole
    for at in spots_in(sound, entry):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0x11]) + sound[at + 1 :])
        told = verified(path)
        assert not told.whole, at
        assert HURT in [p.seq for p in told.problems], (at, told.problems)


def spots_in(file, entry):
    """Some bytes of an entry's row: from the first of its own words to the last, numbers between them too."""
    words = [w.encode() for w in (entry.job, entry.machine, entry.person)]
    first, last = min(map(file.find, words)), max(file.find(w) + len(w) for w in words)
    assert first > 0 and last - first < 400
    return [*range(first, last, max(1, (last - first) // 16)), last - 1]


def verified(path):
    db = Database(path, synchronous="OFF")
    try:
        return ledger_check.verify(SimpleNamespace(db=db), None)
    finally:
        db.close()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("UPDATE ledger SET cost = 0 WHERE seq = 2", {2: "its contents do not match its hash"}),
        ("DELETE FROM ledger WHERE seq = 2", {2: "it is missing, or cannot be read", 3: "it does not follow the entry before"}),
        ("DELETE FROM ledger WHERE seq = 5", {5: "it is missing, or cannot be read"}),
        ("UPDATE ledger SET seq = 9 WHERE seq = 5", {9: "its contents do not match its hash"}),
        ("UPDATE ledger_head SET hash = 'x'", {None: "the last entry should be number 5, with another hash"}),
    ],
)  # fmt: skip
def test_what_was_changed_removed_or_moved_is_named(ctx, written, damage, named):
    path = ctx.db.path
    ctx.db.close()
    with sqlite3.connect(path) as connection:
        connection.executescript(f"DROP TRIGGER ledger_no_update; DROP TRIGGER ledger_no_delete; {damage};")
    connection.close()
    told = verified(path)
    found = {(p.seq, p.what) for p in told.problems}
    assert not told.whole and set(named.items()) <= found


def test_the_clock_follows_no_jump_within_a_life_nor_over_a_restart():
    wall, boot = Clock(1000.0), Clock(50.0)
    usage_clock = UsageClock(wall_s=wall, boot_s=boot, boot="b1")
    assert usage_clock.now_ms == 1_000_000
    wall.now, boot.now = 999_999.0, 60.0
    assert usage_clock.now_ms == 1_010_000
    noted = usage_clock.reading()
    boot.now = 70.0
    again = UsageClock(wall_s=wall, boot_s=boot, boot="b1")
    again.resume(*noted)
    assert again.now_ms == 1_020_000


@pytest.mark.parametrize(("wall_s", "shows"), [(900.0, 1_000_000), (2000.0, 2_000_000)])
def test_after_a_boot_it_never_stands_before_what_it_has_shown(wall_s, shows):
    usage_clock = UsageClock(wall_s=lambda: wall_s, boot_s=lambda: 5.0, boot="b2")
    usage_clock.resume("b1", 50_000, 1_000_000)
    assert usage_clock.now_ms == shows


def test_what_ran_before_there_was_a_ledger_is_taken_over_once(ctx, anna):
    jobs = [add_job(ctx, anna, name) for name in ("over", "open", "never")]
    for job in jobs:
        add_node(ctx, job)
    began = utcnow() - timedelta(hours=3)

    def work(session):
        for job in jobs[:2]:
            attempt = session.scalars(select(Attempt).where(Attempt.job_id == job)).one()
            attempt.started_at = began
            node = session.scalars(select(Node).where(Node.attempt_id == attempt.id)).one()
            if job == jobs[0]:
                node.state, node.ended_at = NodeState.EXITED.value, began + timedelta(hours=2, seconds=30)
                attempt.state, attempt.ended_at = "ended", node.ended_at

    ctx.db.write(work)
    for _ in range(2):
        ledger.begin(ctx)
    found = billing.usage(ctx, None, by="job")
    assert [(r.key, r.slot_seconds, r.cost) for r in found.rows] == [("over", 7230.0, None)]
    assert ledger_check.verify(ctx, None).entries == 3
    with ctx.db.read() as session:
        assert session.scalars(select(OpenSpan.job)).all() == ["open"]
        assert session.query(Job).count() == 3
