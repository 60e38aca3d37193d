"""Choice of the likely cause among several differences: the one that can first show where the metrics begin to differ."""

import pytest

from shoal.core.diffs import Change, FileChange, MetricDifference, SampleDifference
from shoal.server.web.job.diff_cause import Evidence, causes, kind_of

LR = Change(section="settings", name="--lr", first="0.1", second="0.2")
SEED = Change(section="seed", name="seed", first="1", second="2")
BATCH = Change(section="data", name="global batch", first="4", second="8")
DATA = Change(section="data", name="dataset words", first="version 1", second="version 2")
WORKERS = Change(section="hardware", name="workers", first="1 × 1", second="1 × 2")
VARIABLE = Change(section="settings", name="$MODE", first=None, second="fast")
TORCH = Change(section="environment", name="torch", first="2.12", second="2.13")
OUTPUT = Change(section="settings", name="--output-dir", first="a", second="b")
CODE = FileChange(path="train.py", kind="changed", diff="…")
README = FileChange(path="README.md", kind="changed", matters=False)


def evidence(*changes, at=None, drawn=None, files=(), relative=0.1, resumes=(), first_step=1):
    return Evidence(
        changes=changes,
        files=files,
        metric=at and MetricDifference(name="loss", step=at, first=1.0, second=2.0, relative=relative),
        samples=drawn and SampleDifference(loader="loader", step=drawn, first=[1], second=[2]),
        first_step=first_step,
        resumes=resumes,
    )


def named(*changes, **more):
    return [cause.name for cause in causes(evidence(*changes, **more))]


def test_equal_numbers_need_no_cause():
    assert named(LR, DATA) == []


@pytest.mark.parametrize(
    ("changes", "more", "first"),
    [
        ((LR, VARIABLE), {"at": 2}, "--lr"),
        ((LR, VARIABLE), {"at": 1}, "$MODE"),  # no learning rate shows before there was an update
        ((LR, DATA), {"at": 1}, "dataset words"),
        ((LR, SEED), {"at": 1, "drawn": 1}, "seed"),
        ((LR, BATCH), {"at": 1, "drawn": 1}, "global batch"),
        ((WORKERS, BATCH), {"at": 1, "drawn": 1}, "workers"),
        ((OUTPUT, TORCH), {"at": 1}, "torch"),
        ((OUTPUT,), {"at": 7, "files": (CODE, README)}, "train.py"),
        ((DATA, TORCH), {"at": 1, "relative": 1e-7}, "torch"),
        ((VARIABLE, WORKERS), {"at": 3, "relative": 1e-8}, "workers"),
    ],
)
def test_of_several_the_one_that_fits_the_step_comes_first(changes, more, first):
    assert named(*changes, **more)[0] == first


def test_what_is_told_twice_is_one_cause():
    typed = Change(section="settings", name="--seed", first="1", second="2")
    config = Change(section="settings", name="config seed", first="1", second="2")
    assert named(typed, config, SEED, at=1, drawn=1) == ["--seed"]
    pinned = FileChange(path="requirements.txt", kind="changed", diff="…")
    assert named(TORCH, at=1, files=(pinned,)) == ["torch"]
    more = Change(section="data", name="samples", first="10", second="12")
    assert named(DATA, more, at=1, drawn=1) == ["dataset words"]


def test_the_only_difference_is_said_to_be_the_only_one():
    (cause,) = causes(evidence(LR, at=2))
    assert cause.what == "--lr: 0.1 → 0.2"
    assert cause.why.startswith("the only relevant difference;") and "right after the first update" in cause.why


def test_what_cannot_matter_is_no_cause():
    harmless = Change(section="settings", name="Priority", first="0", second="5", matters=False)
    assert named(harmless, at=3, files=(README,)) == ["chance"]


def test_a_learning_rate_is_not_blamed_for_a_first_loss_even_if_nothing_else_differs():
    first, second = causes(evidence(LR, at=1))
    assert first.name == "chance" and "no known difference can have an effect there" in first.why
    assert second.name == "--lr" and "hardly explains this" in second.why


def test_where_steps_are_told_of_now_and_then_a_first_one_knows_of_updates_too():
    (cause,) = causes(evidence(LR, at=10, first_step=10))
    assert cause.name == "--lr" and "the first that both have reported" in cause.why


def test_where_one_resumed_is_where_to_look():
    (first, *_) = causes(evidence(LR, at=26, resumes=[("broken", 25)]))
    assert first.name == "resume" and first.what == "broken resumed from a checkpoint at step 25"
    assert named(LR, at=40, resumes=[("broken", 25)])[0] == "--lr"


def test_small_differences_without_any_cause_are_put_down_to_kernels_and_large_ones_to_chance():
    assert "deterministic" in causes(evidence(at=5, relative=1e-8))[0].what
    assert "without a seed" in causes(evidence(at=5))[0].what


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("--learning-rate", "optimizer"), ("config optim.weight_decay", "optimizer"), ("--batch_size", "batch"), ("$SEED", "seed"),
        ("--warmup-steps", "schedule"), ("config model.hidden", "model"), ("--data", "data"), ("--alpha", "other"),
        ("--logdir", "naming"), ("batchSize", "batch"), ("--resume", "other"),
    ],
)  # fmt: skip
def test_settings_are_known_by_the_words_of_their_names(name, kind):
    assert kind_of(Change(section="settings", name=name, first="1", second="2")) == kind
