"""The order of jobs on a job's page: a graph of the whole chain with links, and the direct neighbours in words."""

from __future__ import annotations

import re

import pytest

from shoal.core.jobs import JobSpec
from shoal.server.jobs import service as jobs
from shoal.testing.server import add_job, add_source


@pytest.fixture
def chain(ctx, anna):
    source = add_source(ctx, anna)
    wanted = {
        "prepare": [],
        "train": ["prepare"],
        "score-a": ["train"],
        "score-b": ["train:ended"],
        "sum": ["score-a", "score-b"],
    }
    for name, after in wanted.items():
        jobs.submit(ctx, anna.access(), JobSpec(name=name, entry=["train.py"], source_id=source, after=after))
    add_job(ctx, anna, "alone")


def test_the_whole_chain_is_drawn_in_columns_with_links(browser, chain):
    page = browser.get("/w/default/jobs/score-b").text
    assert "Order of jobs" in page and "starts after any end of" in page and "comes before" in page
    drawn = page[
        page.index('aria-label="Jobs in the order') : page.index("</svg>", page.index('aria-label="Jobs in the order'))
    ]
    assert re.findall(r'href="/w/default/jobs/([\w-]+)"', drawn) == ["prepare", "train", "score-a", "score-b", "sum"]
    at = {
        box["name"]: (box["x"], box["y"])
        for box in browser.get("/w/default/jobs/score-b.json").json()["order"]["boxes"]
    }
    assert at["prepare"][0] < at["train"][0] < at["score-a"][0] == at["score-b"][0] < at["sum"][0]
    assert at["score-a"][1] < at["score-b"][1]
    assert drawn.count("<path") == 5


def test_a_job_alone_has_no_order(browser, chain):
    assert "Order of jobs" not in browser.get("/w/default/jobs/alone").text
