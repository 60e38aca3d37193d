"""Conversion of a form, or an earlier job, to a specification and to the equivalent command."""

import shlex

import pytest
from sqlalchemy import update
from web_browser import Browser
from web_drafts import HTMX, NEW, TwoMachines, fill, form_of, full_spec, preview

from shoal.core.jobs import JobSpec
from shoal.server.jobs import service as jobs
from shoal.server.models.jobs import Job
from shoal.server.web.command import training_command
from shoal.server.web.drafts.job import Draft, from_job, to_spec
from shoal.testing.server import add_job, add_node, add_source


@pytest.fixture
def browser(app, ctx, anna):
    return Browser(app).enter(ctx, anna)


def test_a_clone_is_the_same_job_under_another_name(browser, ctx, anna):
    checkpoint = fill(ctx, anna)
    spec = full_spec(add_source(ctx, anna), checkpoint)
    old = jobs.submit(ctx, anna.access(), spec)
    page = browser.get(f"{NEW}?from={old.id}")
    assert page.status_code == 200
    assert browser.post(NEW, form_of(page.text)).headers["location"] == "/w/default/jobs/full-2"
    assert jobs.get(ctx, anna.access(), "full-2").spec == spec.model_copy(update={"name": "full-2"})
    assert f"{NEW}?from={old.id}" in browser.get("/w/default/jobs").text
    assert f"{NEW}?from={old.id}" in browser.get("/w/default/jobs/full").text


def test_no_setting_is_forgotten():
    usual = [
        name for name, field in JobSpec.model_fields.items() if getattr(full_spec("src_x"), name) == field.get_default()
    ]
    assert usual == [], "put it into the form (drafts.py, _new_job_form.html) and into full_spec"


def test_machines_are_chosen_where_there_are_several(browser, ctx):
    assert "Machines</legend>" not in browser.get(NEW).text
    ctx.engine = TwoMachines()
    assert 'aria-label="Exclude two"' in browser.get(NEW).text
    shown = preview(browser, prefer=["one"], exclude=["two"], accels="8")
    assert "--exclude two --prefer one" in shown and "start immediately" in shown
    assert "given by both --exclude and --prefer" in preview(browser, prefer=["one"], exclude=["one"])


def test_the_command_holds_every_setting_and_reads_back_to_the_same_job(ctx, anna):
    spec = full_spec("src_x")
    command = training_command(spec, workspace="team", source={"kind": "archive", "path": "my code.zip"})
    assert command == (
        "shoal training run full --workspace team --zip 'my code.zip' --dataset more --dataset words@1 --mount s3://bucket/images:/images --mount s3://bucket/words:/words:ro --nodes 2:3 --gpu H100 "
        "--checkpoint ckpt_x --grow --accels 2 --device any --mixed-models --max-restarts 0 --priority -5 --time-limit 90m --stall-timeout never --on-stall fail --expected 2h --batch night --after prepare:ended "
        "--exclude two --prefer one --keep-last 2 --keep-best -acc --budget 8h --launcher torchrun --allow-cpu --memory 16G --cpus 2.5 --disk 100G --shm 8GiB --grace 5m --one-device-per-worker --allow-torch-change --gpu-memory 80G --label rack=a --engine-option partition=long --engine-option qos=high "
        "--env 'A=b c' --secret TOKEN=thing -- train.py --lr 3e-4 '--name=a b' pos --fp16"
    )
    assert shlex.split(command)[-6:] == spec.entry
    alone = JobSpec(name="one", entry=["train.py"], source_id="src_x")
    command = training_command(alone, workspace="default", source={"kind": "file", "path": "train.py"})
    assert command == "shoal training run one --file train.py -- train.py"


def test_the_command_is_one_the_command_line_understands(ctx, anna, monkeypatch):
    """Its own parser takes it, and makes the same specification of it."""
    from shoal.cli.main import app
    from shoal.cli.shared.session import session
    from shoal.cli.training import run as _training_run

    monkeypatch.setattr(session, "after_dashes", None)
    caught = []

    def caught_spec(name, entry, wanted, choice):
        caught.append((JobSpec(name=name, source_id="src_x", entry=list(entry), **wanted), choice))
        raise SystemExit(0)

    monkeypatch.setattr(_training_run, "check_job", caught_spec)
    spec = full_spec("src_x")
    command = training_command(
        spec, workspace="default", source={"kind": "git", "url": "https://x.org/r", "commit": "abc"}
    )
    with pytest.raises(SystemExit):
        app(shlex.split(command)[1:])
    assert caught[0][0] == spec
    assert (caught[0][1].repository_url, caught[0][1].revision) == ("https://x.org/r", "abc")


def test_the_command_follows_an_unfinished_form(browser):
    assert 'data-copy="shoal training run NAME -- train.py"' in preview(browser)
    shown = preview(browser, name="n", accels="3", entry="a.py", line="--lr 1")
    assert 'data-copy="shoal training run n --accels 3 -- a.py --lr 1"' in shown
    assert "is not a usable job name" in preview(browser, name="a b")
    assert "Time limit &#39;soon&#39; is not a length of time" in preview(browser, time_limit="soon")
    assert "is not closed" in preview(browser, line="--x 'open")
    assert "min nodes: Input should be a valid integer" in preview(browser, min_nodes="two")


def test_rows_and_line_follow_each_other(browser):
    rows = {"edited": "rows", "arg_name": ["lr", "--fp16", ""], "arg_value": ["3e-4", "", ""], "line": "old"}
    shown = preview(browser, **rows, arg_kind=["decimal", "switch", "text"])
    assert 'id="args-line"' in shown and 'value="--lr 3e-4 --fp16"' in shown and 'id="args-rows"' not in shown
    shown = preview(browser, edited="line", line="--seed 7", arg_name=["was-there"], arg_value=["1"], arg_kind=["text"])
    assert 'id="args-rows"' in shown and 'value="--seed"' in shown and "was-there" not in shown
    wrong = preview(browser, edited="rows", arg_name=["lr"], arg_value=["much"], arg_kind=["decimal"])
    assert "&#39;much&#39; is not a number" in wrong and "args-line" not in wrong


def test_the_page_says_whether_there_is_room_now(browser, ctx, anna):
    assert "It would start immediately" in preview(browser, accels="4")
    assert "can never run here" in preview(browser, accels="5")
    running = add_job(ctx, anna)
    add_node(ctx, running)
    ctx.db.write(lambda s: s.execute(update(Job).values(state="running")))
    assert "needs 4 slots, 3 free now" in preview(browser, accels="4")
    assert "needs 2 × 2 slots, 3 free now" in preview(browser, min_nodes="2", accels="2")
    jobs.submit(
        ctx, anna.access(), JobSpec(name="large", entry=["train.py"], source_id=add_source(ctx, anna), accels=4)
    )
    assert "It would wait" in preview(browser, accels="3")
    assert "It would start immediately" in preview(browser, accels="3", priority="1")
    assert "3 of 4 cpu slots" in browser.get(f"{NEW}?part=free", headers=HTMX).text


def test_a_draft_of_a_job_is_that_job(ctx, anna):
    add_job(ctx, anna)
    view = jobs.get(ctx, anna.access(), "a-job")
    assert to_spec(from_job(view).model_copy(update={"name": "a-job"})) == view.spec
    assert to_spec(Draft(name="x", source_id="src_x", entry="a.py")) == JobSpec(
        name="x", source_id="src_x", entry=["a.py"]
    )
