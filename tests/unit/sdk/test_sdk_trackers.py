import threading
from importlib.util import find_spec

import pytest

from shoal.core.errors import MissingExtra, UsageError
from shoal.sdk import trackers
from shoal.sdk.context import read_context
from shoal.sdk.options import Options
from shoal.sdk.spool import Spool
from shoal.sdk.trackers import Mirror, make
from shoal.testing.extras import needs
from shoal.testing.patience import wait_until


def put(spool, step, values, now):
    """A step, on disk before the flusher comes by."""
    spool.write_step(step, values, now)
    spool.flush()


class Notes:
    """A tracker that remembers."""

    def __init__(self):
        self.calls = []

    def start(self, name, config, dir):
        self.calls.append(("start", name, config))

    def log(self, step, values):
        self.calls.append(("log", step, dict(values)))

    def media(self, step, name, type, path, mime):
        self.calls.append(("media", step, name, type, path.name))

    def close(self):
        self.calls.append(("close",))


@pytest.fixture
def spool(tmp_path):
    spool = Spool(read_context("t", tmp_path, {}))
    yield spool
    spool.close()


def mirror(spool, *wanted):
    return Mirror(wanted, spool.path, read_context("t", spool.path.parent.parent, {}), Options(config={"lr": 1}))


def test_everything_in_the_spool_reaches_the_tracker_in_order(spool):
    notes = Notes()
    following = mirror(spool, notes)
    following.start()
    put(spool, 1, {"loss": 1.0, "bad": float("inf")}, 0.0)
    spool.write("e", i=1, v={"acc": 0.5, "note": "fine"})
    spool.write("m", i=1, name="x", type="image", file="media/x.png", mime="image/png")
    spool.write("p", i=1)
    following.close()
    assert notes.calls == [
        ("start", "t", {"lr": 1}),
        ("log", 1, {"loss": 1.0, "bad": float("inf")}),
        ("log", 1, {"acc": 0.5, "note": "fine"}),
        ("media", 1, "x", "image", "x.png"),
        ("close",),
    ]


def test_what_an_earlier_process_wrote_is_not_told_again(spool):
    put(spool, 1, {"loss": 1.0}, 0.0)
    notes = Notes()
    following = mirror(spool, notes)
    following.start()
    put(spool, 2, {"loss": 2.0}, 0.0)
    following.close()
    assert [c[1] for c in notes.calls if c[0] == "log"] == [2]


def test_an_object_with_log_alone_will_do_and_one_that_fails_does_not_harm_the_rest(spool, caplog):
    class Broken:
        def log(self, step, values):
            raise ConnectionError("no network")

    class Least:
        steps = []

        def log(self, step, values):
            self.steps.append(step)

    following = mirror(spool, Broken(), Least())
    following.start()
    for step in range(3):
        put(spool, step, {"loss": 1.0}, 0.0)
    following.close()
    assert Least.steps == [0, 1, 2]
    assert "tracker Broken failed and is disabled" in caplog.text


def test_a_hanging_tracker_does_not_hold_the_end_of_the_run(spool, caplog):
    free = threading.Event()

    class Hung:
        def log(self, step, values):
            free.wait(30)

    following = mirror(spool, Hung())
    following.start()
    put(spool, 1, {"loss": 1.0}, 0.0)
    following.close(timeout_s=0.05)
    assert "did not accept the last metrics" in caplog.text
    free.set()
    following.close()


def test_a_missing_package_is_said_at_once_with_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    for name, package in {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}.items():
        with pytest.raises(MissingExtra) as caught:
            make([name], read_context("t", tmp_path, {}))
        assert caught.value.hint == f"pip install {package}"


@pytest.mark.parametrize("wanted", ["nothing", object(), 3])
def test_what_is_no_tracker_is_refused(wanted, tmp_path):
    with pytest.raises(UsageError):
        make([wanted], read_context("t", tmp_path, {}))


def test_tensorboard_gets_scalars_and_images_if_it_is_installed(spool, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from shoal.sdk.media import Shelf, image

    context = read_context("t", tmp_path, {})
    following = mirror(spool, *make(["tensorboard"], context))
    following.start()
    put(spool, 1, {"loss": 0.5}, 0.0)
    put(spool, 2, {"loss": 0.25}, 0.0)
    import numpy as np

    Shelf(context, spool).keep("picture", 2, image(np.zeros((2, 2, 3), np.uint8)))
    following.close(timeout_s=60)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.5), (2, 0.25)]
    assert events.Images("picture")[0].encoded_image_string.startswith(b"\x89PNG")


def test_a_spool_that_is_made_again_is_read_from_its_start(spool, monkeypatch):
    monkeypatch.setattr(trackers, "_EVERY_S", 0.01)
    notes = Notes()
    following = mirror(spool, notes)

    def logged():
        return [c[1] for c in notes.calls if c[0] == "log"]

    following.start()
    for step in range(1, 6):
        put(spool, step, {"loss": 1.0}, 0.0)
    wait_until(lambda: logged() == [1, 2, 3, 4, 5], "the steps before")
    spool.path.unlink()
    spool.check()
    for step in range(6, 20):
        put(spool, step, {"loss": 1.0}, 0.0)
    following.close()
    assert logged() == list(range(1, 20))


def test_mlflow_is_not_sent_back_into_the_job(monkeypatch, tmp_path):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:3130/abcdefghijklmnopqrst-_/0")
    with pytest.raises(UsageError) as caught:
        make(["mlflow"], read_context("t", tmp_path, {}))
    assert "--env MLFLOW_TRACKING_URI=" in str(caught.value.hint)


@needs("mlflow")
def test_mlflow_gets_metrics_and_parameters_and_one_run_over_all_attempts(spool, tmp_path, monkeypatch):
    uri = (
        f"sqlite:///{tmp_path}/mlflow.db"
        if find_spec("sqlalchemy") and find_spec("alembic")
        else f"file://{tmp_path}/mlruns"
    )
    for name, value in {"MLFLOW_TRACKING_URI": uri, "MLFLOW_EXPERIMENT_NAME": "digits"}.items():
        monkeypatch.setenv(name, value)
    import mlflow

    mlflow.set_tracking_uri(None)
    context = read_context("t", tmp_path, {"SHOAL_JOB_ID": "job_1"})
    for attempt in (1, 2):
        following = mirror(spool, *make(["mlflow"], context))
        following.start()
        put(spool, attempt, {"loss": 1.0 / attempt}, 0.0)
        spool.write("e", i=attempt, v={"verdict": "fine"})
        following.close(timeout_s=60)
    (run,) = mlflow.search_runs(experiment_names=["digits"], output_format="list")
    assert (run.data.params, run.data.metrics["loss"], run.data.tags["verdict"]) == ({"lr": "1"}, 0.5, "fine")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5)]
