"""T12, P10: whatever is repeated, lost, late or killed, and wherever clocks jump, the ledger holds the true intervals, once.

`SHOAL_SEQUENCES` sets how many sequences are tried.
"""

import os
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from shoal.core.money import cost_of
from shoal.server.billing import ledger, ledger_rules
from shoal.server.billing.usage_clock import UsageClock
from shoal.server.db import share_compiled
from shoal.server.models import Base
from shoal.server.models.ledger import LedgerEntry, LedgerHead, OpenSpan

SEQUENCES = int(os.environ.get("SHOAL_SEQUENCES", "30"))
LEASE_S = 30
STRIDE_S = 25.0
HOUR_MS = 60_000
"""Length of an hour in this test, so that hours pass."""


@dataclass
class Node:
    """True state of a node, in true seconds."""

    attempt_id: str
    slots: int
    price: int
    alive: bool = True
    linked: bool = True
    first: float | None = None
    """Its first word that lasted."""
    heard: float | None = None
    known: float | None = None
    """Its last word, and the last one that would outlive the server."""
    says_end: bool = False
    end: float | None = None
    """True end of its interval, once that is certain."""


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.engine = create_engine("sqlite://", poolclass=StaticPool)
        share_compiled(self.engine)
        Base.metadata.create_all(self.engine, [t.__table__ for t in (LedgerEntry, LedgerHead, OpenSpan)])
        self._forget_what_was_seen()
        self.now, self.wall, self.booted_at, self.boots = 0.0, 1.8e9, -1000.0, 0
        self.nodes = []
        self.usage_clock = self._usage_clock()
        self._write(lambda session: ledger.renew(session, self.usage_clock))

    def teardown(self):
        for node in self._open():
            if node.alive or node.says_end:
                node.alive, node.linked, node.says_end = False, True, True
            else:
                self._lose(node)
        self._words()
        self._forget_what_was_seen()
        self.what_is_entered_is_true_and_follows_what_was()
        with Session(self.engine) as session:
            assert session.scalar(select(OpenSpan.attempt_id)) is None
            assert session.get_one(LedgerHead, 1).hash == self.head
        self.engine.dispose()

    # What happens

    @rule(slots=st.integers(1, 8), price=st.sampled_from([0, 1, 333_333, 1_200_000]))
    def a_node_gets_its_slots(self, slots, price):
        node = Node(f"att_{len(self.nodes):026d}", slots, price)

        def work(session):
            ledger.store_clock(session, self.usage_clock)
            self._open_span(session, node)

        self._write(work)
        self.nodes.append(node)

    @rule(seconds=st.floats(0.1, 150))
    def time_passes(self, seconds):
        while seconds > 0:
            self.now += min(seconds, STRIDE_S)
            seconds -= STRIDE_S
            self._words()
            self._renew()

    @precondition(lambda self: self.nodes)
    @rule(pick=st.randoms(use_true_random=False))
    def words_are_repeated(self, pick):
        node = pick.choice(self.nodes)
        if node.alive and node.linked:
            for _ in range(3):
                self._word(node)

    @precondition(lambda self: self.nodes)
    @rule(pick=st.randoms(use_true_random=False))
    def a_cable_is_pulled_or_plugged_in(self, pick):
        node = pick.choice(self.nodes)
        node.linked = not node.linked

    @precondition(lambda self: self.nodes)
    @rule(pick=st.randoms(use_true_random=False), tells=st.booleans())
    def a_node_ends_or_dies(self, pick, tells):
        node = pick.choice(self.nodes)
        if node.alive:
            node.alive, node.says_end = False, tells
            self._words()

    @precondition(lambda self: self.nodes)
    @rule(pick=st.randoms(use_true_random=False))
    def an_end_is_told_again(self, pick):
        node = pick.choice(self.nodes)
        if node.end is not None:
            self._write(lambda s: ledger.end_node(s, self.usage_clock, node.attempt_id, 0, timeout_s=LEASE_S))
            self.usage_clock.record_message(node.attempt_id, 0)  # a zombie's word

    @rule()
    def the_watchdog_looks(self):
        for node in self._open():
            if node.heard is not None and self.now - node.heard > LEASE_S:
                self._lose(node)

    @rule(
        after=st.booleans(),
        away_s=st.floats(0, 100),
        ends=st.booleans(),
        boots=st.booleans(),
        hours=st.sampled_from([-24, -1, 0, 1, 24]),
    )
    def the_server_is_killed_and_comes_back(self, after, away_s, ends, boots, hours):
        """Kill the server before or after its last records are stored; alone, or with the machine and everything on it."""
        if not after:
            self._words()
        self.now += away_s
        for node in self._open() if boots else self._open()[: int(ends)]:
            node.says_end = node.alive and not boots
            node.alive = False
        if boots:
            self.booted_at, self.boots = self.now, self.boots + 1
        self.wall += hours * 3600
        self.usage_clock = self._usage_clock()
        for node in self._open():
            node.heard = node.known
        with Session(self.engine) as session:
            head = session.get_one(LedgerHead, 1)
            self.usage_clock.resume(head.boot_id, head.boot_ms, head.at_ms)

    @rule(seconds=st.sampled_from([-86_400, -3600, -1, 1, 3600, 86_400]))
    def the_wall_clock_is_set(self, seconds):
        self.wall += seconds

    @rule(slots=st.integers(1, 8))
    def a_start_is_cut_off_before_its_commit(self, slots):
        with Session(self.engine) as session:
            self._open_span(session, Node("att_never", slots, 1))
            session.rollback()

    # What must hold

    @invariant()
    def what_is_entered_is_true_and_follows_what_was(self):
        """New entries are looked at once; in the end, all of them again."""
        for entry in self._entries(after=self.last):
            self._look(entry)
        for node in self.nodes:
            slot_ms, cost = self.spent.get(node.attempt_id, (0, 0))
            if node.end is None:
                assert slot_ms <= node.slots * (_ms(node.heard, node.first) + 5)
            else:
                assert abs(slot_ms - node.slots * _ms(node.end, node.first)) <= 5 * node.slots
                assert abs(cost - cost_of(slot_ms, node.price)) <= 1 + slot_ms // HOUR_MS

    def _look(self, entry):
        assert list(ledger_rules.faults(entry, self.last + 1, self.head)) == []
        assert self.ends.get(entry.attempt_id, entry.start_ms) <= entry.start_ms < entry.end_ms
        assert entry.end_ms - entry.start_ms <= HOUR_MS
        slot_ms, cost = self.spent.get(entry.attempt_id, (0, 0))
        self.spent[entry.attempt_id] = (slot_ms + entry.slot_ms, cost + entry.cost)
        self.ends[entry.attempt_id], self.head, self.last = entry.end_ms, entry.hash, entry.seq

    def _forget_what_was_seen(self):
        self.last, self.head, self.ends, self.spent = 0, ledger_rules.FIRST, {}, {}

    # The parts

    def _usage_clock(self):
        booted = self.booted_at
        return UsageClock(
            wall_s=lambda: self.wall + self.now, boot_s=lambda: self.now - booted, boot=f"boot-{self.boots}"
        )

    def _open_span(self, session, node):
        session.add(
            OpenSpan(
                attempt_id=node.attempt_id, node=0, workspace_id="w", job_id="j", job="j", person="p", attempt=1,
                machine="m", kind="cpu", slots=node.slots, price=node.price, currency="EUR",
            )
        )  # fmt: skip
        session.flush()

    def _word(self, node):
        self.usage_clock.record_message(node.attempt_id, 0)
        node.heard = self.now
        if node.first is None:  # the first is a join, which is written at once
            self._write(lambda session: ledger.record_message(session, self.usage_clock, node.attempt_id, 0))
            node.first = node.known = self.now

    def _words(self):
        for node in self._open():
            if not node.linked:
                continue
            if node.alive:
                self._word(node)
            elif node.says_end:
                self._write(lambda s, n=node: ledger.end_node(s, self.usage_clock, n.attempt_id, 0, timeout_s=LEASE_S))
                sure = node.heard is not None and self.now - node.heard <= LEASE_S
                node.end = self.now if sure else node.heard if node.heard is not None else self.now
                node.first = self.now if node.first is None else node.first

    def _lose(self, node):
        self._write(lambda s: ledger.end_node(s, self.usage_clock, node.attempt_id, 0, timeout_s=None))
        node.end = self.now if node.heard is None else node.heard

    def _renew(self):
        self._write(lambda session: ledger.renew(session, self.usage_clock))
        for node in self._open():
            node.known = node.heard

    def _write(self, work):
        with Session(self.engine) as session, session.begin():
            work(session)

    def _open(self):
        return [n for n in self.nodes if n.end is None]

    def _entries(self, after):
        with Session(self.engine) as session:
            new = select(LedgerEntry).where(LedgerEntry.seq > after).order_by(LedgerEntry.seq)
            return session.scalars(new).all()


def _ms(end, first):
    return 0 if end is None or first is None else (end - first) * 1000


@pytest.fixture(autouse=True)
def short_hours(monkeypatch):
    monkeypatch.setattr(ledger_rules, "HOUR_MS", HOUR_MS)


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(
    max_examples=SEQUENCES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
TestLedger = pytest.mark.usefixtures("short_hours")(TestLedger)
