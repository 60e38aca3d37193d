"""Metrics from the agent's segment to the chart: exactly once, one history over attempts, nothing bent on the way."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from shoal.server.metrics import reads as metric_reads
from shoal.server.metrics import writes as intake
from shoal.server.models.metrics import MetricBlock, MetricSeries
from shoal.testing.server import add_job

sys.path.insert(0, str(Path(__file__).parent))

from metriclines import Sender, add_attempt

W = "/workspaces/default/jobs/a-job"


@pytest.fixture
def job(ctx, anna):
    return add_job(ctx, anna)


@pytest.fixture
def agent(ctx, app, job):
    return Sender(app, add_attempt(ctx, job)[0])


def read(client, **params):
    answer = client.get(f"{W}/metrics", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(client):
    return {m["name"]: m for m in client.get(f"{W}/metric-names").json()}


def test_points_come_back_as_they_were_sent(agent, as_anna):
    agent.steps(1, 4, loss=lambda i: 1 / i, lr=lambda i: 0.1)
    found = read(as_anna)
    assert found["metrics"] == {"loss": [[1, 1.0], [2, 0.5], [3, 1 / 3]], "lr": [[1, 0.1], [2, 0.1], [3, 0.1]]}
    assert found["starts"] == {"1": 1}
    assert found["ghosts"] is None
    assert read(as_anna, name="lr")["metrics"] == {"lr": [[1, 0.1], [2, 0.1], [3, 0.1]]}
    assert names(as_anna)["loss"] == {
        "name": "loss", "kind": "step", "count": 3, "last": 1 / 3, "last_step": 3, "min": 1 / 3, "max": 1.0,
    }  # fmt: skip


def test_points_read_off_the_output_are_marked_and_each_metric_counts_in_its_own_unit(ctx, app, job, agent, as_anna):
    agent.send(*({"k": "g", "i": 100 * i, "v": {"loss": 1.0 / i}} for i in range(1, 4)))
    agent.send(*({"k": "g", "i": i, "v": {"val_loss": 2.0 / i}} for i in range(1, 4)))
    assert {name: m["kind"] for name, m in names(as_anna).items()} == {"loss": "log", "val_loss": "log"}
    later = Sender(app, add_attempt(ctx, job)[0])
    later.send({"k": "g", "i": 200, "v": {"loss": 0.4}}, {"k": "g", "i": 3, "v": {"val_loss": 0.5}})
    found = read(as_anna)["metrics"]
    assert found == {"loss": [[100, 1.0], [200, 0.4]], "val_loss": [[1, 2.0], [2, 1.0], [3, 0.5]]}
    assert (names(as_anna)["loss"]["count"], names(as_anna)["val_loss"]["count"]) == (2, 3)


def test_a_name_that_the_script_logs_itself_is_shown_beside_the_one_read_off_its_output(agent, as_anna):
    agent.send({"k": "g", "i": 1, "v": {"loss": 9.0}})
    agent.steps(1, 3, loss=lambda i: 1.0)
    assert read(as_anna)["metrics"] == {"loss": [[1, 1.0], [2, 1.0]], "log/loss": [[1, 9.0]]}


def test_a_segment_sent_again_or_in_part_again_counts_once(agent, as_anna):
    records = agent.records(*({"k": "s", "i": i, "v": {"loss": i}} for i in range(10)))
    for first, end in ((0, 6), (0, 6), (3, 10), (0, 10)):
        answer = agent.post(first, records[first:end])
        assert answer.json() == {"next_seq": max(end, 6 if first == 0 and end == 6 else 10)}
    assert [x for x, _ in read(as_anna)["metrics"]["loss"]] == list(range(10))
    assert names(as_anna)["loss"]["count"] == 10
    gap = agent.post(20, records[:1])
    assert (gap.status_code, gap.json()["error"]["details"]) == (409, {"next_seq": 10})


def test_lines_an_agent_ships_twice_under_new_numbers_count_once(agent, as_anna):
    """It died between passing lines on and noting that it had: its salvage passes them on again."""
    records = agent.records(*({"k": "s", "i": i, "v": {"loss": i}} for i in range(6)))
    agent.post(0, records[:4])
    agent.post(4, records[2:])
    assert [x for x, _ in read(as_anna)["metrics"]["loss"]] == list(range(6))


def test_what_is_not_finite_survives_as_text(agent, as_anna):
    values = [1.5, "nan", "inf", "-inf", 2]
    agent.send(*({"k": "s", "i": i, "v": {"loss": v}} for i, v in enumerate(values)))
    agent.post(agent.seq, ['{"s":5,"t":1,"k":"s","i":5,"v":{"loss":NaN},"rank":0,"q":5}'])
    found = read(as_anna)["metrics"]["loss"]
    assert found == [[0, 1.5], [1, "nan"], [2, "inf"], [3, "-inf"], [4, 2.0], [5, "nan"]]
    told = names(as_anna)["loss"]
    assert (told["min"], told["max"], told["last"], told["count"]) == (1.5, 2.0, "nan", 6)
    assert as_anna.get(W).json()["metrics"] == {"loss": "nan"}


def test_evaluations_may_be_strings_and_keep_apart_from_steps_of_the_same_name(agent, as_anna):
    agent.send(
        {"k": "s", "i": 1, "v": {"loss": 0.5, "wrong": "text"}},
        {"k": "e", "i": 1, "v": {"loss": 0.7, "verdict": "0.93 good", "mixed": 1}},
        {"k": "e", "i": 2, "v": {"mixed": "two"}},
    )
    found = read(as_anna)["metrics"]
    assert found == {
        "loss": [[1, 0.5]], "eval/loss": [[1, 0.7]], "verdict": [[1, "0.93 good"]], "mixed": [[1, 1.0], [2, "two"]],
    }  # fmt: skip
    told = names(as_anna)
    assert (told["eval/loss"]["kind"], told["verdict"]["last"], told["mixed"]["count"]) == ("eval", "0.93 good", 2)
    assert read(as_anna, name="eval/loss")["metrics"] == {"eval/loss": [[1, 0.7]]}


def test_bad_lines_and_values_are_left_out_and_hold_up_nothing(agent, as_anna):
    lines = [
        '{"s":0,"t":1,"k":"s","i":1,"v":{"loss":1,"flag":true,"list":[1],"none":null,"huge":1' + "0" * 400 + "}}",
        "{torn",
        "[1,2]",
        '"text"',
        '{"s":4,"t":1,"k":"s","i":1.5,"v":{"loss":9}}',
        '{"s":5,"t":"x","k":"s","i":1,"v":{"loss":9}}',
        '{"s":6,"t":1,"k":"s","i":2,"v":[9]}',
        '{"s":7,"t":1,"e":"sys","m":"dropped"}',
        '{"s":8,"t":1,"k":"s","i":3,"v":{"loss":3,"' + "x" * 501 + '":1,"":1}}',
    ]
    assert agent.post(0, lines).json() == {"next_seq": 9}
    assert read(as_anna)["metrics"] == {"loss": [[1, 1.0], [3, 3.0]], "huge": [[1, "inf"]]}


def test_numbers_of_other_ranks_are_dropped(ctx, app, job, as_anna):
    zero, one = (Sender(app, token, rank=rank) for rank, token in enumerate(add_attempt(ctx, job, num_nodes=2)))
    zero.steps(0, 2, loss=lambda i: 0)
    one.steps(0, 5, loss=lambda i: 1)
    one.send({"k": "l", "name": "train", "e": 0, "i": [0, 4], "p": [0, 5], "c": 7, "r": [1, 2]})
    assert read(as_anna)["metrics"]["loss"] == [[0, 0.0], [1, 0.0]]


def test_a_newer_attempt_takes_the_place_of_what_lies_beyond_its_start(ctx, app, job, agent, as_anna):
    agent.steps(1, 11, loss=lambda i: 100 + i)
    agent.send({"k": "e", "i": 5, "v": {"acc": 0.5}}, {"k": "e", "i": 10, "v": {"acc": 0.6}})
    second = Sender(app, add_attempt(ctx, job)[0])
    second.steps(6, 9, loss=lambda i: 200 + i)
    agent.steps(11, 13, loss=lambda i: 100 + i)  # what a dying node still had to say
    found = read(as_anna, ghosts=True)
    assert found["metrics"]["loss"] == [[i, 100.0 + i] for i in range(1, 6)] + [[i, 200.0 + i] for i in range(6, 9)]
    assert found["ghosts"]["loss"] == [[i, 100.0 + i, 1] for i in range(6, 13)]
    assert found["metrics"]["acc"] == [[5, 0.5]]
    assert found["ghosts"]["acc"] == [[10, 0.6, 1]]
    assert found["starts"] == {"1": 1, "2": 6}
    told = names(as_anna)
    assert (told["loss"]["count"], told["loss"]["min"], told["loss"]["max"], told["loss"]["last_step"]) == (
        8,
        101,
        208,
        8,
    )
    assert told["acc"]["count"] == 1
    assert "ghosts" in read(as_anna) and read(as_anna)["ghosts"] is None


def test_an_evaluation_repeated_after_a_resume_is_not_doubled(ctx, app, job, agent, as_anna):
    agent.steps(1, 6, loss=float)
    agent.send({"k": "e", "i": 5, "v": {"acc": 0.5}})
    second = Sender(app, add_attempt(ctx, job)[0])
    second.send({"k": "e", "i": 5, "v": {"acc": 0.55}})
    second.steps(6, 8, loss=float)
    found = read(as_anna)["metrics"]
    assert found["acc"] == [[5, 0.55]]
    assert [x for x, _ in found["loss"]] == [1, 2, 3, 4, 5, 6, 7]


def test_a_run_that_goes_back_within_one_attempt_is_not_doubled_either(agent, as_anna):
    agent.steps(1, 8, loss=float)
    agent.steps(5, 7, loss=lambda i: -i)
    assert read(as_anna)["metrics"]["loss"] == [[i, float(i)] for i in range(1, 5)] + [[5, -5.0], [6, -6.0]]
    assert names(as_anna)["loss"]["count"] == 6


def test_small_blocks_are_merged_and_nothing_changes_but_their_number(ctx, job, agent, as_anna):
    for i in range(200):
        agent.send({"k": "s", "i": i, "v": {"loss": i / 7}}, {"k": "e", "i": i, "v": {"note": f"at {i}"}})
    with ctx.db.read() as session:
        assert session.scalar(select(func.count()).select_from(MetricBlock)) < 80
        assert session.scalar(select(func.count()).select_from(MetricSeries)) == 2
    found = read(as_anna)
    assert found["metrics"]["loss"] == [[i, i / 7] for i in range(200)]
    assert found["metrics"]["note"] == [[i, f"at {i}"] for i in range(200)]
    assert found["cursor"] == 200
    assert names(as_anna)["loss"]["count"] == 200
    later = read(as_anna, after=150)
    assert later["metrics"]["loss"] == [[i, i / 7] for i in range(150, 200)]
    assert read(as_anna, after=200)["metrics"] == {}
    assert intake.merge(ctx, job, 1) == 0


def test_very_many_points_are_thinned_to_a_chart_that_keeps_its_peaks(agent, as_anna):
    total, size = (1_000_000 if "SHOAL_SOAK" in os.environ else 100_000), 50_000
    for first in range(0, total, size):
        # The agent's batches are smaller; larger ones only make this test quicker.
        lines = [f'{{"s":{i},"t":{i},"k":"s","i":{i},"v":{{"loss":{i % 97}}},"rank":0,"q":{i}}}' for i in range(first, first + size)]  # fmt: skip
        if first == total // 2:
            lines[123] = lines[123].replace(f'"loss":{(first + 123) % 97}', '"loss":1e9')
        assert agent.post(first, lines).status_code == 200
    read(as_anna, name="loss", points=4)
    start = time.process_time()
    found = read(as_anna, name="loss", points=1000)["metrics"]["loss"]
    if total == 1_000_000:
        assert time.process_time() - start < 1.0  # bench/metrics.py holds it to 0.1 on a quiet machine
    assert 500 <= len(found) <= 1000
    assert [total // 2 + 123, 1e9] in found
    assert found[0][0] == 0 and found[-1][0] == total - 1
    assert [x for x, _ in found] == sorted({x for x, _ in found})
    assert min(v for _, v in found) == 0


def test_smoothing_and_buckets_come_from_all_points_and_only_if_asked_for(agent, as_anna):
    agent.steps(0, 4000, loss=lambda i: 10.0 if i % 50 == 0 else 1.0)
    plain = read(as_anna, points=100)
    assert plain["smoothed"] is None and plain["buckets"] is None
    found = read(as_anna, points=100, smoothing=0.98, buckets=True)
    assert found["metrics"] == plain["metrics"]
    assert found["smoothed"]["loss"][-1] == [3999, pytest.approx(1.18, rel=0.02)]
    buckets = found["buckets"]["loss"]
    assert sum(b[2] for b in buckets) == 4000
    assert sum(b[2] * b[4] for b in buckets) / 4000 == pytest.approx(1.18)
    assert {b[3] for b in buckets} == {1.0} and {b[5] for b in buckets} == {10.0}
    assert buckets[0][:2] == [0, buckets[1][0] - 1] and buckets[-1][1] == 3999 and buckets[-1][6] == 1.0


def test_smoothing_of_a_part_is_refused_and_strings_are_not_smoothed(agent, as_anna):
    agent.steps(0, 3, loss=lambda i: 1.0)
    agent.send({"k": "e", "i": 1, "v": {"note": "good"}})
    assert set(read(as_anna, smoothing=0.5)["smoothed"]) == {"loss"}
    assert as_anna.get(f"{W}/metrics", params={"smoothing": 0.5, "after": 1}).status_code == 422
    for wrong in (1, -0.1, "nan"):
        assert as_anna.get(f"{W}/metrics", params={"smoothing": wrong}).status_code == 422


def test_time_and_relative_axes(agent, as_anna):
    agent.send({"k": "s", "i": 7, "t": 5000.25, "v": {"loss": 1}}, {"k": "s", "i": 8, "t": 5002.0, "v": {"loss": 2}})
    assert read(as_anna, axis="time")["metrics"]["loss"] == [[5000.25, 1.0], [5002.0, 2.0]]
    assert read(as_anna, axis="relative")["metrics"]["loss"] == [[0.0, 1.0], [1.75, 2.0]]


def test_an_unknown_metric_is_not_found_by_name(agent, as_anna):
    agent.steps(0, 1, loss=float)
    answer = as_anna.get(f"{W}/metrics", params={"name": "los"})
    assert answer.status_code == 404
    assert "Did you mean 'loss'?" in answer.json()["error"]["message"]


def test_ledger_and_hyperparameters_come_back_as_they_were_written(ctx, app, job, agent, as_anna):
    line = {"k": "l", "name": "train", "e": 0, "i": [0, 49], "p": [0, 50], "c": 123, "t": 1.0, "n": 1, "r": [0, 1]}
    agent.send({"k": "h", "v": {"lr": 0.1, "deep": {"a": [1]}}}, {"k": "w", "code": "x", "text": "careful"})
    agent.send(line)
    found = as_anna.get(f"{W}/ledger").json()
    assert [r["i"] for r in found] == [[0, 49]]
    assert (found[0]["attempt"], found[0]["rank"], found[0]["r"]) == (1, 0, [0, 1])
    assert as_anna.get(f"{W}/config").json() == {"lr": 0.1, "deep": {"a": [1]}}
    Sender(app, add_attempt(ctx, job)[0]).send({"k": "h", "v": {"lr": 0.2}})
    assert as_anna.get(f"{W}/config").json() == {"lr": 0.2}


def test_a_script_that_makes_up_names_without_end_is_held_back(ctx, agent, as_anna, monkeypatch):
    monkeypatch.setattr(intake, "MAX_SERIES", 5)
    agent.send({"k": "s", "i": 1, "v": {f"m{i}": i for i in range(9)}})
    agent.send({"k": "s", "i": 2, "v": {"m0": 7, "m8": 7}})
    assert read(as_anna)["metrics"]["m0"] == [[1, 0.0], [2, 7.0]]
    assert len(names(as_anna)) == 5


def test_deleting_a_job_removes_all_of_it(ctx, job, agent, as_anna):
    agent.steps(0, 3, loss=float)
    from sqlalchemy import update

    from shoal.server.models.jobs import Job

    ctx.db.write(lambda s: s.execute(update(Job).values(state="succeeded")) and None)
    assert as_anna.delete(W).status_code == 204
    with ctx.db.read() as session:
        assert session.scalar(select(func.count()).select_from(MetricBlock)) == 0


def test_the_answer_is_json_a_browser_takes(agent, as_anna):
    agent.send({"k": "s", "i": 1, "v": {"<b>& \u2028 \ud83d\ude00": "nan"}})
    text = as_anna.get(f"{W}/metrics").text
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))["metrics"] == {
        "<b>& \u2028 😀": [[1, "nan"]]
    }


def test_listing_names_costs_in_proportion_to_how_many_there_are(ctx, anna, job, agent):
    """Counted in lines of code run, which no busy machine changes."""

    def cost():
        lines = 0

        def trace(frame, event, _):
            nonlocal lines
            if frame.f_code.co_filename != metric_reads.__file__:
                return None
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            found = metric_reads.names(ctx, anna.access(), job)
        finally:
            sys.settrace(before)
        return len(found), lines

    agent.send({"k": "s", "i": 1, "v": {f"a{n}": n for n in range(50)}})
    few, cost_of_few = cost()
    agent.send({"k": "s", "i": 2, "v": {f"b{n}": n for n in range(350)}})
    many, cost_of_many = cost()
    assert (few, many) == (50, 400)
    assert cost_of_many < 10 * cost_of_few  # eight times as many names; a cost for every pair would be 64 times
