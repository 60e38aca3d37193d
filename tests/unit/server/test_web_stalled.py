"""The page of a job that stands still says which ranks wait where; scripts in what agents report stay text."""

from html import unescape

import pytest
from sqlalchemy import select, update

from shoal.core.settings import ServerSettings
from shoal.core.stacks import RankStack, StacksReport
from shoal.server.jobs import stacks
from shoal.server.jobs.agent_commands import AgentCommands
from shoal.server.models.jobs import Attempt, Job, Node
from shoal.server.policy import AgentIdentity
from shoal.testing.server import add_job, add_node

PAGE = "/w/default/jobs/stuck"


@pytest.fixture
def who(ctx, anna):
    job = add_job(ctx, anna, "stuck")
    add_node(ctx, job)
    for table in (Job, Attempt, Node):
        ctx.db.write(lambda s, table=table: s.execute(update(table).values(state="running")))
    with ctx.db.read() as session:
        attempt = session.scalars(select(Attempt)).one()
    return AgentIdentity(job, attempt.id, 1, 0)


def test_a_job_that_stands_still_says_so_on_its_page_until_it_moves(browser, ctx, who):
    now = [0.0]
    ctx.commands, ctx.settings = AgentCommands(lambda: now[0]), ServerSettings(stall_s=60.0)
    assert "Stalled:" not in browser.get(PAGE).text
    now[0] = 60.0
    stacks.request_of_stalled(ctx, who.attempt_id, 60.0)
    [order] = ctx.commands.pending(who.attempt_id, 0)
    found = RankStack(rank=0, inside="<b>load</b>", at="data.py:7")
    stacks.report(ctx, who, StacksReport(order=order["id"], ranks=[found]))
    page = browser.get(PAGE).text
    assert "<b>load</b>" not in page
    said = "no line, metric or step for 60 s: rank 0 is in <b>load</b> at data.py:7"
    assert f"Stalled: {said}" in unescape(page)
    ctx.commands.record_progress(who.attempt_id)
    after = unescape(browser.get(PAGE).text)
    assert "Stalled:" not in after and said in after, "it stays among the events"
