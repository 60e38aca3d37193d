"""Places in a log: slices that are cut inside a segment, searches that stop midway and go on."""

import dataclasses
import itertools
import json

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from web_run import Run

from shoal.server.jobs import streams
from shoal.server.web.job import log_search, logs, system_metrics
from shoal.server.web.job.logs import Filter

ALL = Filter()


@pytest.fixture
def run(ctx, anna):
    return Run(ctx, anna)


def texts(found):
    return [line.text for line in found.lines]


def fill(run, *sizes):
    """Segments of so many lines each; the texts of all."""
    numbers = itertools.count()
    made = [[f"line {next(numbers):05}" for _ in range(size)] for size in sizes]
    for some in made:
        run.log(*some)
    return list(itertools.chain.from_iterable(made))


def test_a_slice_ends_inside_a_segment_and_the_next_goes_on_there(ctx, anna, run):
    written, seen, before = fill(run, 7, 300, 1, 45), [], None
    while True:
        found = logs.tail(ctx, anna.access(), run.id, ALL, before=before, wanted=40)
        assert len(found.lines) <= 40 and found.next == (before or found.next)
        seen, before = texts(found) + seen, found.first
        if not found.earlier:
            break
    assert seen == written


TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3', "    main()", "ValueError: bad"]


def burst(run, *texts, at=5000.0):
    """Lines that a worker wrote in one go: the agent gives them one time."""
    run.send("log", *({"r": 0, "e": "err", "m": text, "t": at} for text in texts))


def test_lines_of_one_moment_are_read_in_the_order_they_were_written(ctx, anna, run):
    burst(run, *TRACEBACK[:3])
    burst(run, *TRACEBACK[3:])
    access = anna.access()
    error = log_search.first_error(ctx, access, run.id, ALL).hits[0]
    hit = log_search.search(ctx, access, run.id, ALL, "ValueError").hits[0]
    assert texts(logs.tail(ctx, access, run.id, ALL)) == TRACEBACK
    assert texts(logs.tail(ctx, access, run.id, ALL, wanted=2)) == TRACEBACK[2:]
    assert error.line.text == TRACEBACK[0]
    assert texts(logs.around(ctx, access, run.id, ALL, error.at)) == TRACEBACK
    assert texts(logs.around(ctx, access, run.id, ALL, hit.at)) == TRACEBACK
    assert texts(logs.following(ctx, access, run.id, ALL, 0)) == TRACEBACK


def test_lines_of_two_nodes_at_one_moment_stay_together_by_node(ctx, anna, run):
    first, second = run.who, dataclasses.replace(run.who, node=1)
    for text in ("a", "b"):
        for who in (second, first):
            record = {"s": 0, "t": 7000.0, "r": who.node, "e": "err", "m": f"{who.node}{text}"}
            streams.append(ctx, who, "log", "ab".index(text), 1, zstandard.compress(json.dumps(record).encode()))
    expected = ["0a", "0b", "1a", "1b"]
    assert texts(logs.tail(ctx, anna.access(), run.id, ALL)) == expected
    assert [line.text for line in streams.read_logs(ctx, anna.access(), run.id).lines] == expected


SEGMENTS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.sampled_from([5000.0, 5000.0, 5000.25, 4999.0, 5003.5]), min_size=1, max_size=30)),
    min_size=1,
    max_size=12,
)  # fmt: skip


def test_every_way_to_read_a_log_gives_each_line_once_and_those_of_a_node_in_order(ctx, anna):
    """Whatever segments of whatever nodes arrive, and however many of their lines have the same time."""
    jobs = (Run(ctx, anna, f"job-{n}") for n in itertools.count())

    @settings(max_examples=15, deadline=None)
    @given(SEGMENTS, st.integers(1, 40))
    def check(segments, wanted):
        run, access, written = next(jobs), anna.access(), {}
        for node, times in segments:
            mine = written.setdefault(node, [])
            texts_ = [f"{node} {len(mine) + n}" for n in range(len(times))]
            lines = [
                json.dumps({"t": at, "r": node, "e": "out", "m": text}) for at, text in zip(times, texts_, strict=True)
            ]
            who = dataclasses.replace(run.who, node=node)
            streams.append(ctx, who, "log", len(mine), len(lines), zstandard.compress("\n".join(lines).encode()))
            mine += texts_
        for found in (by_tail(ctx, access, run, wanted), by_following(ctx, access, run), by_download(ctx, access, run)):
            assert len(found) == sum(map(len, written.values()))
            for node, mine in written.items():
                at_once = [text for text in found if text.startswith(f"{node} ")]
                times = dict(zip(mine, (at for n, some in segments if n == node for at in some), strict=True))
                for before, after in itertools.pairwise(at_once):
                    assert mine.index(before) < mine.index(after) or times[before] < times[after]
            if len(written) == 1 and len({at for _, some in segments for at in some}) == 1:
                assert found == mine

    def by_tail(ctx, access, run, wanted):
        seen, before = [], None
        while True:
            page = logs.tail(ctx, access, run.id, ALL, before=before, wanted=wanted)
            seen, before = texts(page) + seen, page.first
            if not page.earlier:
                return seen

    def by_following(ctx, access, run):
        page = logs.following(ctx, access, run.id, ALL, 0)
        assert not page.later
        return texts(page)

    def by_download(ctx, access, run):
        _, pieces = logs.download(ctx, access, run.id, ALL, with_places=True)
        return [line.partition(" ")[2] for line in b"".join(pieces).decode().splitlines()]

    check()


def test_what_follows_a_place_leaves_nothing_out(ctx, anna, run):
    written = fill(run, 900, 2000, 3)
    found, seen = logs.following(ctx, anna.access(), run.id, ALL, 0), []
    seen += texts(found)
    while found.later:
        found = logs.following(ctx, anna.access(), run.id, ALL, found.next)
        seen += texts(found)
    assert seen == written


def test_a_line_is_shown_among_its_neighbours_of_a_large_segment(ctx, anna, run):
    written = fill(run, 5000)
    hit = log_search.search(ctx, anna.access(), run.id, ALL, "LINE 02500").hits[0]
    found = logs.around(ctx, anna.access(), run.id, ALL, hit.at)
    assert texts(found) == written[2200:3200]
    assert found.earlier and found.later
    assert texts(logs.tail(ctx, anna.access(), run.id, ALL, before=found.first, wanted=5)) == written[2195:2200]
    assert texts(logs.following(ctx, anna.access(), run.id, ALL, found.next))[0] == written[3200]


def test_a_search_with_many_hits_comes_in_pages_that_miss_none(ctx, anna, run):
    written, seen, after, more = fill(run, 10, 640, 55), [], 0, True
    while more:
        page = log_search.search(ctx, anna.access(), run.id, ALL, "line", after=after, limit=33)
        assert len(page.hits) <= 33
        seen += [hit.line.text for hit in page.hits]
        after, more = page.cursor, page.more
    assert seen == written


def test_a_search_out_of_time_says_where_to_go_on(ctx, anna, run, monkeypatch):
    written, seen, after, more, pages = fill(run, *[20] * 200), [], 0, True, 0
    monkeypatch.setattr(log_search, "SEARCH_S", 0.0)
    while more:
        page = log_search.search(ctx, anna.access(), run.id, ALL, "line 0399", after=after)
        seen += [hit.line.text for hit in page.hits]
        after, more, pages = page.cursor, page.more, pages + 1
    assert seen == written[3990:4000]
    assert pages > 100


def test_text_is_found_as_it_is_shown_not_as_it_is_kept(ctx, anna, run):
    lines = ['say "hi"', r"C:\temp", "a\tb", "日本語 text", "Straße", "\x1b[31mred\x1b[0m", "out of order"]
    run.log(*lines)
    asked = {'"hi"': 0, "c:\\t": 1, "A\tB": 2, "本語": 3, "STRAßE": 4, "RED": 5, "out": 6}
    for text, number in asked.items():
        hits = log_search.search(ctx, anna.access(), run.id, ALL, text).hits
        assert [hit.line.text for hit in hits] == [lines[number]], text


def test_the_first_error_of_a_rank_is_that_ranks(ctx, anna, run):
    run.send("log", {"r": 0, "e": "out", "m": "Error rate 0.2"}, {"r": 0, "e": "err", "m": "KeyError: 'x'"})
    run.send("log", {"r": 1, "e": "err", "m": "\tValueError: y"}, {"r": 1, "e": "err", "m": "FATAL"})
    found = [log_search.first_error(ctx, anna.access(), run.id, Filter(rank=rank)).hits for rank in (None, 0, 1, 2)]
    assert [[hit.line.text for hit in hits] for hits in found] == [
        ["KeyError: 'x'"], ["KeyError: 'x'"], ["\tValueError: y"], []
    ]  # fmt: skip


def test_a_rank_that_was_silent_for_long_is_looked_for_in_steps(ctx, anna, run, monkeypatch):
    run.send("log", {"r": 1, "e": "out", "m": "one"})
    fill(run, *[100] * 10)
    monkeypatch.setattr(logs, "_MOST_READ", 250)
    found, asked = logs.tail(ctx, anna.access(), run.id, Filter(rank=1)), 1
    while found.earlier:
        found, asked = logs.tail(ctx, anna.access(), run.id, Filter(rank=1), before=found.first), asked + 1
    assert texts(found) == ["one"] and asked == 5


def test_a_page_of_the_api_has_a_bearable_number_of_lines(ctx, anna, run, monkeypatch):
    monkeypatch.setattr(streams, "_PAGE_LINES", 250)
    written, seen, after, more, pages = fill(run, *[100] * 7, 900, 5), [], 0, True, []
    while more:
        page = streams.read_logs(ctx, anna.access(), run.id, after=after)
        seen += [line.text for line in page.lines]
        after, more = page.cursor, page.more
        pages.append(len(page.lines))
    assert seen == written
    assert pages == [200, 200, 200, 100, 900, 5]


def test_of_a_long_runs_samples_some_are_drawn_from_first_to_last(ctx, anna, run, monkeypatch):
    for n in range(70):
        run.send("system", {"t": float(n), "cpu": n})
    monkeypatch.setattr(system_metrics, "_MOST_SEGMENTS", 10)
    found = system_metrics.samples(ctx, anna.access(), run.id)[0]
    assert len(found.at) == 10 and found.at[-1] == 69.0 and found.at[0] < 10
    assert found.series["cpu"] == found.at


def test_a_node_that_has_told_of_itself_but_sent_no_samples_has_none(ctx, anna, run):
    assert system_metrics.samples(ctx, anna.access(), run.environment("3.11").id) == []


def test_every_line_has_a_position_that_leads_back_to_it(ctx, anna, run):
    written = fill(run, 7, 300, 1, 45)
    access = anna.access()
    found = logs.tail(ctx, access, run.id, ALL, wanted=400)
    assert texts(found) == written and len(set(found.places)) == len(written)
    for index in (0, 6, 7, 200, 352):
        near = logs.around(ctx, access, run.id, ALL, found.places[index])
        assert near.lines[near.places.index(found.places[index])].text == written[index]
    numbered = b"".join(logs.download(ctx, access, run.id, ALL, with_places=True)[1]).decode().splitlines()
    assert numbered == [f"{where} {text}" for where, text in zip(found.places, written, strict=True)]


def test_a_time_leads_to_the_first_line_then(ctx, anna, run):
    for start in (0, 10, 20):
        run.send("log", *({"r": n % 2, "e": "out", "m": f"at {start + n}", "t": 1000.0 + start + n} for n in range(10)))
    access = anna.access()

    def at(moment, chosen=ALL):
        where = logs.place_at(ctx, access, run.id, chosen, moment)
        found = logs.around(ctx, access, run.id, chosen, where)
        return found.lines[found.places.index(where)].text if where in found.places else None

    assert [at(0.0), at(1013.5), at(1029.0)] == ["at 0", "at 14", "at 29"]
    assert at(1014.0, Filter(rank=1)) == "at 15" and at(5000.0) is None
