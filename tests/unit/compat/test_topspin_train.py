"""TopSpin's trainer in debug mode: its numbers, its files, how it ends, and how it goes on."""

import json
import pickle
import re
import threading
from pathlib import Path

import pytest
import torch

from shoal.compat.topspin import stopping
from shoal.compat.topspin.figures import usual_ending
from shoal.compat.topspin.logs import Logger
from shoal.compat.topspin.model import ModelBase, ModelWrapperBase
from shoal.compat.topspin.param import ParamBase
from shoal.compat.topspin.predict import PredictorBase
from shoal.compat.topspin.train import TrainerBase
from shoal.sdk.ranks import group
from shoal.train.bug import NonFiniteLoss


class Param(ParamBase):
    def __init__(self, path=None):
        super().__init__("tiny", path)
        self.optimizer_name = "SGD"
        self.lr = 5e-4
        self.weight_decay = 0
        self.warmup_ratio = 0.1
        self.batch_size_one_gpu = 3
        self.train_sample_num = 30
        self.eval_gap_sample_num = 30
        self.seed = 3


class Model(ModelBase):
    def __init__(self, param):
        super().__init__(param)
        torch.manual_seed(3)  # runs that are compared begin alike, whatever ran before
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x)


class Predictor(PredictorBase):
    def __init__(self, param):
        super().__init__(Model(param))

    def evaluate_file(self, data_file):
        return float(self.predict(torch.ones(1, 2)).sum()) + 5


class Trainer(TrainerBase):
    """Trainer in the style of version 1.2.1."""

    epochs = 1024

    def __init__(self, param):
        super().__init__(Model(param), Predictor, None)
        self.batches = []

    def get_training_data(self, rank, world_size):
        for epoch in range(self.epochs):
            for number in range(10):
                yield epoch, [torch.full((3, 2), float(number)), {"note": number}]

    def train_one_batch(self, x, note):
        self.batches.append(note)
        return {"loss": (self._model(x) - 1).pow(2).mean(), "figure": {"mean": x.mean()}}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    for name in ("param_file", "DIST_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ParamBase, "instances", {})
    monkeypatch.setattr(ParamBase, "_opened", {str(Param)})
    yield
    Logger.close()
    Logger.set_level(1)
    group.close_group()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def param(path=None, **attributes):
    made = Param(path)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def result(of):
    return json.loads(Path(of.path_meta, "result.json").read_text())


def test_the_learning_rate_rises_and_falls_by_samples_seen_after_the_step():
    made = param(max_train_step=20, train_sample_num=3200, eval_gap_sample_num=1000)
    assert Trainer(made).train().reason == "finished"
    log = Path(made.path_log, "log.rank_0").read_text()
    ratios = [float(r) for r in re.findall(r"lr: ratio=([^,]+)", log)]
    assert ratios[:5] == pytest.approx([0.5, 1.0, 0.944445, 0.88889, 0.833335], abs=1e-6)
    assert ratios[-1] == pytest.approx(1e-5) and len(ratios) == 20


def test_stepwise_decay_follows_the_epochs():
    made = param(epoch_num=3, lr_decay_strategy="stepwise_sgd", stepwise_lr_decay_epochs=1)
    Trainer(made).train()
    ratios = [float(r) for r in re.findall(r"lr: ratio=([^,]+)", Path(made.path_log, "log.rank_0").read_text())]
    assert ratios == pytest.approx([1] * 9 + [0.1] * 10 + [0.01] * 10 + [0.001])


def test_the_methods_that_topspin_calls_by_their_private_names_are_called_too():
    class Overriding(Trainer):
        def __init__(self, param):
            super().__init__(param)
            self.called = []

        def _draw_figure(self):
            self.called.append(("draw", sorted(self._figure_data), len(self._loss_history)))
            super()._draw_figure()

        def _save_model(self, tag=""):
            self.called.append("save")
            super()._save_model(tag)

        def _update_lr(self):
            self._update_lr_ratio(0.5)

        def _step_optimizer(self):
            self.called.append("step")
            super()._step_optimizer()

    made = param(max_train_step=4, draw_figure_frequency=2, eval_gap_sample_num=12)
    trainer = Overriding(made)
    assert trainer.train().reason == "finished"
    assert [c for c in trainer.called if c[0] == "draw"] == [("draw", ["loss", "mean"], n) for n in (2, 4, 4)]
    assert trainer.called.count("step") == 4 and trainer.called.count("save") == 1
    assert trainer._optimizer.param_groups[0]["lr"] == 0.5 * 5e-4
    assert Path(made.path_meta, "figure.data").is_file() and list(Path(made.path_model).glob("model_*.pt"))


def test_a_method_that_is_overridden_in_vain_is_named():
    class Overriding(Trainer):
        def _when_evaluate(self, train_done=False):
            return True

    made = param(max_train_step=1)
    Overriding(made).train()
    log = Path(made.path_log, "log.rank_0").read_text()
    assert "Overriding._when_evaluate is never called" in log and "_update_lr_SGD" not in log


def test_a_model_that_loads_its_files_itself_is_left_to_it():
    class OwnLoading(Model):
        loaded = ()

        def load_model(self, model_file):
            self.loaded = (*self.loaded, Path(model_file).name)
            return super().load_model(model_file)

    class WithOwnLoading(Trainer):
        def __init__(self, param):
            TrainerBase.__init__(self, OwnLoading(param), Predictor, None)
            self.batches = []

    before = param(max_train_step=2)
    Trainer(before).train()
    [file] = Path(before.path_model).glob("model_*.pt")
    after = param(max_train_step=2, path_initial_model=str(file))
    assert WithOwnLoading(after)._user_model.loaded == (file.name,)


def test_a_run_leaves_the_files_of_topspin():
    made = param(epoch_num=3, vali_file="vali", test_files=["t1"])
    for name in ("vali", "t1"):
        Path(name).touch()
    trainer = Trainer(made)
    outcome = trainer.train()
    root = Path(made.path_work)
    assert (outcome.seen, outcome.steps) == (90, 30)
    assert (root / "meta/TRAIN.DONE").exists() and not (root / "meta/run.lock").exists()
    history = pickle.loads((root / "meta/dev.eval.pkl").read_bytes())
    assert len(history) == 3 and result(made)["best"] == min(history) == outcome.best
    assert result(made)["status"] == "finished"
    figures = pickle.loads((root / "meta/figure.data").read_bytes())
    assert len(figures["loss"]) == 30 and len(figures["mean"]) == 30
    assert [x for x, _ in figures["vali_file.vali"]] == [9, 19, 29]
    assert [-y for _, y in figures["vali_file.vali"]] == history
    for name in (
        f"{root.name}.train.loss{usual_ending()}",
        f"{root.name}.train.loss.smoothed_256{usual_ending()}",
        "log.error",
        "log/log.rank_0",
    ):
        assert (root / name).exists(), name
    assert (root / Path(__file__).name).read_text() == Path(__file__).read_text()
    names = (root / "model/checkpoint").read_text().split()
    last = torch.load(root / "model" / names[-1], weights_only=True)
    assert set(last) == {
        "batch_id", "model_seen_sample_num", "opt_evaluate_error", "last_evaluate_point", "figure_data",
        "optimizer_state", "model",
    }  # fmt: skip
    assert names[-1] == f"model_{last['model_seen_sample_num']:015}.pt" and "layer.weight" in last["model"]
    assert f"so far the best vali error: {min(history)}" in (root / "log/log.rank_0").read_text()


def test_without_a_validation_file_every_model_is_kept_up_to_so_many():
    made = param(epoch_num=5, model_saved_num=2)
    Trainer(made).train()
    assert Path(made.path_model, "checkpoint").read_text().split() == [f"model_{n:015}.pt" for n in (120, 150)]


def test_a_wrapped_model_of_version_4_is_trained_and_judged():
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x), x

    class Wrapper(ModelWrapperBase):
        def evaluate_file(self, data_file):
            assert not self._model.training and not torch.is_grad_enabled()
            return float(self.predict(torch.ones(1, 2))[0])

    class Old(TrainerBase):
        asked = 0

        def __init__(self, param):
            data = ((e, [torch.ones(3, 2), torch.ones(3, 1)]) for e in range(9) for _ in range(10))
            super().__init__(Wrapper(param, Plain()), data, None)

        def train_one_batch(self, x, y):
            assert self._model_wrapper._model.training
            return (self._model_wrapper.predict(x)[0] - y).pow(2).mean(), 6

        def early_stop(self, epoch_id, loss_history, vali_error_history):
            Old.asked += 1
            return len(loss_history) >= 7

    Path("vali").touch()
    made = param(epoch_num=9, vali_file="vali")
    outcome = Old(made).train()
    assert outcome.reason == "early_stop" and outcome.seen == 6 * outcome.steps
    assert Old.asked == outcome.steps == 7, "asked once after every step"


def test_a_class_of_version_5_is_made_into_a_model():
    wrapper = ModelWrapperBase(param(epoch_num=1), Model)
    assert isinstance(wrapper._user_model, Model)
    assert wrapper.predict(torch.ones(1, 2)).shape == (1, 1)


def test_early_stop_of_this_version_knows_the_batch():
    class Stops(Trainer):
        def early_stop(self, batch_id, epoch_id, loss_history, vali_error_history):
            assert len(loss_history) == batch_id + 1 and epoch_id == 0
            return batch_id >= 4

    made = param(epoch_num=3)
    outcome = Stops(made).train()
    assert outcome.reason == "early_stop" and outcome.steps == 5
    assert Path(made.path_meta, "TRAIN.DONE").exists()


def test_data_that_ends_too_early_is_a_failure_and_data_that_ends_at_the_end_is_not():
    class Short(Trainer):
        epochs = 1

    made = param(epoch_num=2)
    with pytest.raises(SystemExit) as caught:
        Short(made).train()
    assert caught.value.code == 1 and Path(made.path_meta, "TRAIN.FAILED").exists()
    assert result(made)["status"] == "failed" and result(made)["reason"] == "out_of_data"
    enough = param(epoch_num=1)
    assert Short(enough).train().seen == 30 and Path(enough.path_meta, "TRAIN.DONE").exists()


@pytest.mark.parametrize("nan", [False, True])
def test_a_failed_step_is_kept_in_the_folder_bug_replayed_and_never_restored_from(nan, monkeypatch):
    class Broken(Trainer):
        def train_one_batch(self, x, note):
            if self._model_seen_sample_num == 42:
                bad = float("nan") if nan else 1 // 0
                return {"loss": self._model(x).mean() * bad}
            return super().train_one_batch(x, note)

    made = param(epoch_num=9)
    with pytest.raises(NonFiniteLoss if nan else ZeroDivisionError):
        Broken(made).train()
    root = Path(made.path_work)
    assert (root / "meta/TRAIN.FAILED").exists() and result(made)["status"] == "failed"
    kept = pickle.loads((root / "bug/batch.42.rank_0.pkl").read_bytes())
    assert kept["args"][0].tolist() == [[4, 4]] * 3 and kept["kwargs"] == {"note": 4}
    variables = pickle.loads((root / "bug/local_vars.42.rank_0.pkl").read_bytes())
    assert variables["note"] == 4
    assert (root / "bug/model_42.rank_0.pt").exists()
    assert (root / "model/checkpoint").read_text().split() == ["model_000000000000030.pt"]
    assert "ERR:" in (root / "log.error").read_text()
    monkeypatch.setenv("SHOAL_REPLAY", str(root / "checkpoints/bug/step-000000015-rank-0"))
    with pytest.raises(NonFiniteLoss if nan else ZeroDivisionError):
        Broken(param(epoch_num=9)).train()
    assert len(list(Path("work").iterdir())) == 1, "a replay leaves no run behind"
    monkeypatch.delenv("SHOAL_REPLAY")
    again = Trainer(param(made.path_work, epoch_num=2))
    assert again.train().seen == 60 and again.batches == list(range(10))


def test_a_stopped_run_saves_says_so_and_goes_on_exactly():
    class Stopped(Trainer):
        def train_one_batch(self, x, note):
            if len(self.batches) == 13:
                told = threading.Event()
                stop = self._lock_watch._on_removed
                self._lock_watch._on_removed = lambda why: (stop(why), told.set())
                stopping.stop(self._param.path_work)
                assert told.wait(10)
            return super().train_one_batch(x, note)

    whole = param(epoch_num=3)
    Trainer(whole).train()
    made = param(epoch_num=3)
    outcome = Stopped(made).train()
    root = Path(made.path_work)
    assert outcome.reason == "stopped" and result(made)["status"] == "stopped"
    assert (root / "meta/TRAIN.STOPPED").exists() and not (root / "meta/TRAIN.DONE").exists()
    assert (root / "model/checkpoint").read_text().split()[-1] == f"model_{outcome.seen:015}.pt"
    again = Trainer(param(made.path_work, epoch_num=3))
    assert again.train().seen == 90
    assert again.batches == [n % 10 for n in range(outcome.steps, 30)]
    weights = [torch.load(f"{p.path_model}/model_{90:015}.pt")["model"] for p in (whole, made)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    losses = [pickle.loads(Path(p.path_meta, "figure.data").read_bytes())["loss"] for p in (whole, made)]
    assert losses[0] == losses[1]


def test_a_run_of_which_only_model_files_are_left_is_restored_from_them():
    import shutil

    made = param(epoch_num=1)
    Trainer(made).train()
    shutil.rmtree(Path(made.path_work, "checkpoints"))
    again = Trainer(param(made.path_work, epoch_num=2))
    assert again.train().seen == 60 and len(again.batches) == 10
    assert len(pickle.loads(Path(made.path_meta, "figure.data").read_bytes())["loss"]) == 20


def test_an_initial_model_brings_weights_and_optimizer_but_not_the_past():
    first = param(epoch_num=1, optimizer_name="Adam")
    Trainer(first).train()
    file = f"{first.path_model}/model_{30:015}.pt"
    trainer = Trainer(param(epoch_num=1, optimizer_name="Adam", path_initial_model=file, lr=0.25))
    saved = torch.load(file)
    assert torch.equal(trainer._user_model.layer.weight, saved["model"]["layer.weight"])
    assert float(next(iter(trainer._optimizer.state.values()))["step"]) == 10
    assert trainer._optimizer.param_groups[0]["lr"] == 0.25
    assert trainer.train().seen == 30


def test_models_that_are_too_large_are_skipped():
    made = param(epoch_num=1, automl_max_model_size=2)
    assert Trainer(made).train() is None
    assert result(made)["status"] == "skipped"


def test_a_predictor_loads_a_model_and_needs_no_gradients():
    made = param(epoch_num=1)
    Trainer(made).train()
    made.path_inference_model = f"{made.path_model}/model_{30:015}.pt"
    predictor = Predictor(made)
    predictor.load_model()
    out = predictor.predict(torch.ones(1, 2))
    assert not out.requires_grad
    assert torch.equal(predictor._model.layer.weight, torch.load(made.path_inference_model)["model"]["layer.weight"])
