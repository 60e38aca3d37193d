"""Runs: filter, sort, group and page of all jobs of a workspace; tags and notes; summaries of metrics that stay true."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from web_run import Run

from shoal.core.errors import InvalidSpec, NotFound
from shoal.core.runs import RunChange, RunsViewSave
from shoal.server.metrics import reads
from shoal.server.models.jobs import Job
from shoal.server.models.runs import RunMetric
from shoal.server.runs import backfill, changes, csv_output, saved_views
from shoal.server.runs import query as runs


def about(ctx, person, *jobs, **fields):
    return changes.change(ctx, person.access(), RunChange(jobs=list(jobs), **fields))


@pytest.fixture
def six(ctx, anna):
    """Two learning rates, three seeds."""
    for n, (lr, seed) in enumerate((lr, seed) for lr in (0.001, 0.01) for seed in (1, 2, 3)):
        run = Run(ctx, anna, f"run-{n}", entry=["train.py", "--lr", str(lr), "--seed", str(seed)])
        run.config(lr=lr, opt="adam" if lr > 0.005 else "sgd")
        run.steps(0, 4, loss=lambda i, lr=lr, seed=seed: 3.0 - 100 * lr + 0.1 * seed - 0.1 * i)
        if n == 5:
            run.become("starting", "running", "failed", reason="NaN")
    about(ctx, anna, "run-0", "run-1", add_tags=["ablation"], starred=True)
    about(ctx, anna, "run-2", title="Wide net", note="too slow", description="the wide one")


def names(ctx, person, q="", **options):
    return [row.name for row in runs.query(ctx, person.access(), q=q, **options).rows]


TABLE = {
    "": [5, 4, 3, 2, 1, 0],
    "lr>0.005": [5, 4, 3],
    "lr>1e-4 lr<0.005 seed:1,2": [1, 0],
    "tag:ablation": [1, 0],
    "-tag:ablation": [5, 4, 3, 2],
    "tag!=ablation": [5, 4, 3, 2],
    "star:yes": [1, 0],
    "star:no status:failed": [5],
    "status:failed": [5],
    "opt:adam": [5, 4, 3],
    "opt!=adam": [2, 1, 0],
    "opt~DA": [5, 4, 3],
    "loss.min<1.85": [3],
    "loss<1.95 seed>1": [4],
    "metric.loss.max>=3.05": [2, 1],
    "loss.count:4 loss.step:3 seed=3": [5, 2],
    "param.loss>0": [],
    "user:anna": [5, 4, 3, 2, 1, 0],
    "user:nobody": [],
    "wide": [2],
    "run-4": [4],
    'note~"TOO SLOW"': [2],
    "age<1h": [5, 4, 3, 2, 1, 0],
    "age>1h": [],
    "kind:trial": [],
    "device:auto nodes:1": [5, 4, 3, 2, 1, 0],
    "opt>3": [],
    "nothing.here<3": [],
}


def test_queries_find_the_runs_they_describe(ctx, anna, six):
    found = {q: names(ctx, anna, q) for q in TABLE}
    assert found == {q: [f"run-{n}" for n in numbers] for q, numbers in TABLE.items()}


@pytest.mark.parametrize("q", ["lr>high", "age<high", "age:3", "star:perhaps", "lr<1,2", 'x"y:1', "duration>x"])
def test_what_no_run_could_satisfy_is_refused(ctx, anna, q):
    with pytest.raises(InvalidSpec):
        names(ctx, anna, q)


def test_runs_are_sorted_by_any_column_and_paged_with_those_without_a_value_last(ctx, anna, six):
    Run(ctx, anna, "bare")
    found = names(ctx, anna, sort="loss.min")
    assert found == ["run-3", "run-4", "run-5", "run-0", "run-1", "run-2", "bare"]
    assert names(ctx, anna, sort="-loss.min") == [*reversed(found[:-1]), "bare"]
    page = runs.query(ctx, anna.access(), sort="loss.min", columns=["lr", "loss.min", "opt", "x"], limit=2, offset=1)
    assert [r.name for r in page.rows] == ["run-4", "run-5"] and page.total == 7
    assert page.rows[0].values == {"lr": 0.01, "loss.min": pytest.approx(1.9), "opt": "adam", "x": None}


def test_all_but_the_seed_gives_mean_and_spread_over_the_seeds(ctx, anna, six):
    page = runs.query(ctx, anna.access(), group=["-seed"], columns=["loss.min"], sort="loss.min")
    assert [(g.key, g.runs) for g in page.groups] == [
        ({"lr": 0.01, "opt": "adam"}, 3), ({"lr": 0.001, "opt": "sgd"}, 3)
    ]  # fmt: skip
    best = [1.8, 1.9, 2.0]
    found = page.groups[0].values["loss.min"]
    assert (found.mean, found.std) == pytest.approx((statistics.fmean(best), statistics.stdev(best)))
    assert (found.min, found.max, found.count) == pytest.approx((1.8, 2.0, 3))
    by_status = runs.query(ctx, anna.access(), group=["status"])
    assert [(g.key["status"], g.runs) for g in by_status.groups] == [("queued", 5), ("failed", 1)]
    both = runs.query(ctx, anna.access(), group=["-seed", "status"])
    assert [(g.key, g.runs) for g in both.groups] == [
        ({"status": "queued", "lr": 0.001, "opt": "sgd"}, 3),
        ({"status": "queued", "lr": 0.01, "opt": "adam"}, 2),
        ({"status": "failed", "lr": 0.01, "opt": "adam"}, 1),
    ]
    one = runs.query(ctx, anna.access(), group=["-seed", "lr"])
    assert [(g.key["lr"], g.runs) for g in one.groups] == [(0.001, 3), (0.01, 3)]


@given(st.lists(st.one_of(st.floats(-1e150, 1e150), st.just(None), st.just("text"), st.just(math.nan)), max_size=20))
def test_mean_and_spread_are_those_of_the_numbers(values):
    numbers = [v for v in values if isinstance(v, float) and math.isfinite(v)]
    found = runs.spread(values)
    assert found.count == len(numbers)
    if numbers:
        scale = max(map(abs, numbers)) or 1.0
        assert found.mean == pytest.approx(statistics.fmean(numbers), abs=1e-9 * scale)
    if len(numbers) > 1:
        assert found.std / scale == pytest.approx(statistics.stdev(v / scale for v in numbers), abs=1e-6)


def test_summaries_equal_those_of_all_points_whatever_is_sent(ctx, anna):
    """Attempts that resume anywhere, steps that go back, NaN, text, evaluations with the name of a step metric."""
    values = st.one_of(st.floats(-100, 100), st.just("nan"))
    batch = st.tuples(st.integers(0, 30), st.integers(1, 8), st.sampled_from("se"), st.sampled_from(["a", "b"]), values)
    number = iter(range(1000))

    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.one_of(batch, st.just("attempt")), min_size=1, max_size=8))
    def check(actions):
        run = Run(ctx, anna, f"check-{next(number)}")
        for action in actions:
            if action == "attempt":
                run.attempt()
                continue
            first, count, kind, name, value = action
            run.send("metric", *({"k": kind, "i": first + i, "v": {name: value}} for i in range(count)))
        expected = {m.name: (m.min, m.max, m.last_step, m.count) for m in reads.names(ctx, anna.access(), run.id)}
        with ctx.db.read() as session:
            rows = session.scalars(select(RunMetric).where(RunMetric.job_id == run.id)).all()
        assert {r.name: (r.min, r.max, r.last_step, r.count) for r in rows} == expected

    check()


def test_jobs_of_older_versions_get_parameters_and_summaries_at_the_first_query(ctx, anna, six):
    def older(session):
        session.query(RunMetric).delete()
        for job in session.scalars(select(Job)):
            job.params = None

    before = runs.query(ctx, anna.access(), columns=["lr", "opt", "loss.min"], sort="name").rows
    ctx.db.write(older)
    backfill._done.clear()
    after = runs.query(ctx, anna.access(), columns=["lr", "opt", "loss.min"], sort="name").rows
    assert [r.values for r in after] == [r.values for r in before]


def test_trials_leases_and_archived_runs_are_folded_away(ctx, anna, six):
    Run(ctx, anna, "t-1", env={"SHOAL_SWEEP": "t"}, entry=["train.py", "--lr", "1"])
    assert "t-1" not in names(ctx, anna)
    assert names(ctx, anna, "kind:trial") == names(ctx, anna, "sweep:t") == ["t-1"]
    about(ctx, anna, "run-3", archived=True)
    assert "run-3" not in names(ctx, anna) and names(ctx, anna, "archived:yes") == ["run-3"]
    assert len(names(ctx, anna, "archived:any kind:any")) == 7
    about(ctx, anna, "run-3", archived=False)
    assert "run-3" in names(ctx, anna)


def test_what_people_write_is_kept_and_changes_only_what_is_given(ctx, anna, six):
    (found,) = about(ctx, anna, "run-2", add_tags=["b", "a", "b"])
    assert (found.tags, found.title, found.note, found.description) == (
        ["b", "a"],
        "Wide net",
        "too slow",
        "the wide one",
    )
    (found,) = about(ctx, anna, "run-2", remove_tags=["b", "c"], title="", starred=True)
    assert (found.tags, found.title, found.starred, found.note) == (["a"], "", True, "too slow")
    with pytest.raises(NotFound):
        about(ctx, anna, "run-2", "run-99", note="none of them")
    assert about(ctx, anna, "run-2")[0].note == "too slow"
    with pytest.raises(ValueError, match="not a tag"):
        RunChange(jobs=["a"], add_tags=["two words"])


def test_other_workspaces_are_neither_seen_nor_changed(ctx, anna, berta, six):
    assert names(ctx, berta) == []
    with pytest.raises(NotFound):
        about(ctx, berta, "run-1", note="mine")


def test_csv_has_what_is_shown_and_no_formulas(ctx, anna, six):
    about(ctx, anna, "run-0", title="=SUM(A1)")
    page = runs.query(ctx, anna.access(), columns=["lr"], sort="name", limit=1)
    head, row = csv_output.write(page, []).splitlines()
    assert head.startswith("id,name,title,kind,status") and head.endswith(",lr")
    assert ",run-0,'=SUM(A1),job,queued," in row and row.endswith(",0.001")
    groups = runs.query(ctx, anna.access(), group=["lr"], columns=["loss.min"])
    assert csv_output.write(groups, ["lr"]).splitlines()[0] == (
        "lr,runs,loss.min mean,loss.min std,loss.min min,loss.min max,loss.min count"
    )


def test_views_are_saved_by_name_for_the_whole_workspace(ctx, anna, berta):
    saved = RunsViewSave(q="tag:ablation", sort="-loss.min", columns=["lr"], group=[])
    saved_views.save(ctx, anna.access(), "best", saved)
    saved_views.save(ctx, anna.access(), "best", saved.model_copy(update={"sort": "lr"}))
    (found,) = saved_views.list_views(ctx, anna.access())
    assert (found.name, found.q, found.sort, found.columns) == ("best", "tag:ablation", "lr", ["lr"])
    assert saved_views.list_views(ctx, berta.access()) == []
    with pytest.raises(InvalidSpec):
        saved_views.save(ctx, anna.access(), "odd", RunsViewSave(q="a>"))
    with pytest.raises(NotFound, match="no saved view"):
        saved_views.get(ctx, anna.access(), "bost")
    saved_views.delete(ctx, anna.access(), "best")
    assert saved_views.list_views(ctx, anna.access()) == []


def test_columns_are_those_of_the_newest_runs(ctx, anna, six):
    found = runs.columns(ctx, anna.access())
    assert found.params == ["lr", "opt", "seed"] and found.metrics == ["loss"] and found.tags == ["ablation"]


def test_a_metric_at_a_step_is_a_column_to_sort_by_and_to_group_with(ctx, anna, six):
    """`six` logs steps 0 to 3; a step after the last has the last value, one before the first has none."""
    found = runs.query(ctx, anna.access(), columns=["loss@2", "loss@99", "lr"], sort="-loss@2", limit=3)
    assert [row.name for row in found.rows] == ["run-2", "run-1", "run-0"]
    assert [row.values["loss@2"] for row in found.rows] == pytest.approx([3.0, 2.9, 2.8])
    assert found.rows[0].values["loss@99"] == pytest.approx(2.9) and found.rows[0].values["lr"] == 0.001
    groups = runs.query(ctx, anna.access(), columns=["loss@1"], group=["lr"], sort="loss@1").groups
    assert [group.values["loss@1"].mean for group in groups] == pytest.approx([2.1, 3.0])
    late = Run(ctx, anna, "late").steps(5, 10, loss=float)
    late.attempt().steps(7, 9, loss=lambda i: 100.0 + i)
    values = {n: names_and(ctx, anna, f"loss@{n}")["late"] for n in (4, 6, 7, 9)}
    assert values == {4: None, 6: 6.0, 7: 107.0, 9: 108.0}
    for options in ({"group": ["loss@1"]}, {"q": "loss@1<2"}):
        with pytest.raises(InvalidSpec):
            runs.query(ctx, anna.access(), **options)


def names_and(ctx, person, column):
    return {row.name: row.values[column] for row in runs.query(ctx, person.access(), columns=[column]).rows}
