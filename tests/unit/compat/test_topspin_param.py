"""TopSpin's parameters: what they are by default, how ranges become variants, and what is refused."""

import pickle
from pathlib import Path

import pytest

from shoal.compat.topspin.param import ParamBase, ParamBase4, ParameterRange
from shoal.core.errors import UsageError

DEFAULTS = {
    "seed": 0, "optimizer_name": "AdamW", "lr": 0.001, "gpu_num": 1, "use_gpu": False, "use_amp": True,
    "path_initial_model": None, "path_inference_model": None, "lr_decay_strategy": "linear", "warmup_ratio": 0,
    "ending_lr_ratio": 1e-5, "stepwise_lr_decay_ratio": 0.1, "stepwise_lr_decay_epochs": 30, "weight_decay": 0.01,
    "param_norm": 1, "gpu_inference": 0, "batch_dim": 0, "servers_file": None, "bucket_cap_mb": 25, "backhand": "gloo",
    "net_name": None, "variable_batch_size": {"<=30": 100, "<=128": 30}, "batch_size_one_gpu": None,
    "iter_num_update_optimizer": 1, "train_files": "", "vali_file": "", "test_files": "", "train_sample_num": None,
    "epoch_num": None, "max_train_step": None, "eval_gap_sample_num": None, "find_unused_parameters": True,
    "model_saved_num": 3, "num_threads_cpu": 4, "num_workers_loading_data": 2, "automl_max_model_size": None,
    "true_gradient": False, "debug_level": 1, "detect_anomaly": False, "cudnn_deterministic": True,
    "cudnn_benchmark": False, "draw_figure_frequency": 1000, "draw_figure_smooth_width": [1, 256],
    "restore_from_last_train": False,
}  # fmt: skip


class Plain(ParamBase):
    def __init__(self):
        super().__init__("my_work.tag")


class Trained(ParamBase):
    def __init__(self):
        super().__init__("trained")
        self.epoch_num = 1
        self.train_sample_num = self.eval_gap_sample_num = 10
        self.own = "mine"


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("param_file", raising=False)
    monkeypatch.setattr(ParamBase, "instances", {})
    monkeypatch.setattr(ParamBase, "_opened", set())


def of(cls, **attributes):
    ParamBase.instances.clear()
    param = cls.get_instance()
    for name, value in attributes.items():
        setattr(param, name, value)
    return param


def test_every_attribute_has_its_default():
    param = of(Plain)
    assert {name: getattr(param, name) for name in DEFAULTS} == DEFAULTS


def test_the_folders_of_a_run_follow_from_its_work_folder():
    param = of(Plain)
    assert param.path_work.startswith("work/run.my_work.tag.utc_")
    assert param.path_model == f"{param.path_work}/model"
    assert param.run_lock_file == f"{param.path_work}/meta/run.lock"
    param.path_work = "elsewhere/run.1/"
    assert (param.path_log, param.path_bug) == ("elsewhere/run.1/log", "elsewhere/run.1/bug")


def test_there_is_one_instance_and_the_class_is_not_called():
    with pytest.raises(UsageError, match="cannot be created by calling"):
        Plain()
    param = Plain.get_instance()
    assert Plain.get_instance() is param
    with pytest.raises(UsageError):
        Plain()


def test_variants_come_in_the_order_of_attributes_with_groups_fastest():
    param = of(
        Trained,
        a=ParameterRange([1, 2]),
        lr=ParameterRange([0.1, 0.2], True),
        b=ParameterRange(["x", "y", "z"]),
        warmup_ratio=ParameterRange([0.3, 0.4], True),
    )
    assert not param.is_instance()
    variants = list(param.generate_all_variants())
    expected = [(a, b, *g) for a in (1, 2) for b in "xyz" for g in ((0.1, 0.3), (0.2, 0.4))]
    assert [(v.a, v.b, v.lr, v.warmup_ratio) for v in variants] == expected
    assert len(variants) == 12
    assert [v.path_work for v in variants] == [f"{param.path_work}.automl_{i}" for i in range(12)]
    assert all(v.is_instance() and v.own == "mine" for v in variants)


def test_only_grouped_ranges_are_zipped():
    param = of(Trained, lr=ParameterRange([1.0, 2.0, 3.0], True), seed=ParameterRange([7, 8, 9], True))
    assert [(v.lr, v.seed) for v in param.generate_all_variants()] == [(1.0, 7), (2.0, 8), (3.0, 9)]


def test_groups_of_different_lengths_are_refused_by_name():
    param = of(Trained, lr=ParameterRange([1, 2], True), seed=ParameterRange([1, 2, 3], True))
    with pytest.raises(UsageError, match="seed has 3, lr has 2"):
        list(param.generate_all_variants())


def test_ranges_of_lists_and_of_attributes_with_rules_are_ranges_like_others():
    param = of(
        Trained,
        kernels=ParameterRange([[3, 4], [5]]),
        true_gradient=ParameterRange([True, False]),
        use_gpu=ParameterRange([True, False]),
        lr_decay_strategy=ParameterRange(["linear", "Stepwise_SGD"]),
    )
    found = {
        (tuple(v.kernels), v.true_gradient, v.use_amp, vars(v)["use_gpu"], v.lr_decay_strategy)
        for v in param.generate_all_variants()
    }
    assert len(found) == 16
    assert all(amp is not true_gradient for _, true_gradient, amp, _, _ in found)
    assert {strategy for *_, strategy in found} == {"linear", "stepwise_sgd"}


def test_true_gradient_goes_without_mixed_precision():
    param = of(Plain, use_amp=True)
    param.true_gradient = True
    assert param.use_amp is False


def test_an_unknown_decay_is_refused_with_those_there_are():
    with pytest.raises(UsageError) as caught:
        of(Plain).lr_decay_strategy = "cubic"
    assert "linear, stepwise_sgd" in caught.value.hint


def test_version_4_has_its_own_defaults_and_spellings():
    class Old(ParamBase4):
        def __init__(self):
            super().__init__("old", None)
            self.batch_size = 16
            self.model_kept_num = 5

    param = of(Old)
    assert (param.optimizer_name, param.weight_decay, param.warmup_ratio, param.ending_lr_ratio) == (
        "Adam",
        0,
        0.1,
        1e-3,
    )
    assert (param.batch_size_one_gpu, param.model_saved_num, param.gpus) == (16, 5, [0])


def test_a_clone_has_a_work_folder_of_its_own():
    param = of(Trained)
    one, other = param.clone(), param.clone()
    assert len({param.path_work, one.path_work, other.path_work}) == 3
    assert ".clone_" in one.path_work


def test_sizes_go_up_to_a_multiple_of_sixteen():
    param = of(Plain)
    assert [param.size_divided_by_16(n) for n in (1, 16, 17)] == [16, 16, 32]
    assert param.size_divided_by_16(9, unit=8) == 16


def test_all_that_is_wrong_is_told_at_once():
    param = of(Plain, train_files=["feat/none.pkl"], gpu_num=0, max_train_step=3)
    with pytest.raises(UsageError) as caught:
        param.check_param_validity()
    for words in (
        "batch_size_one_gpu",
        "train_sample_num",
        "eval_gap_sample_num",
        "gpu_num is 0",
        "E3: there is no feat",
    ):
        assert words in caught.value.message
    with pytest.raises(UsageError, match="exactly one of epoch_num and max_train_step"):
        of(Trained, max_train_step=1).check_param_validity()


def test_a_workspace_is_made_once_and_then_stays_where_it_is():
    param = of(Trained)
    param.create_workspace()
    assert all(Path(param.path_work, name).is_dir() for name in ("model", "log", "meta", "bug"))
    with pytest.raises(UsageError, match="cannot be changed"):
        param.path_work = "elsewhere"
    assert next(iter(param.generate_all_variants())) is param


def test_a_restored_run_keeps_its_seed_and_what_is_in_its_folder():
    first = of(Trained)
    first.create_workspace()
    Path(first.path_meta, "dev.eval.pkl").write_bytes(b"kept")

    class Again(ParamBase):
        def __init__(self):
            super().__init__("again", first.path_work)
            self.epoch_num = 1
            self.train_sample_num = self.eval_gap_sample_num = 10

    again = of(Again)
    again.create_workspace()
    assert again.restore_from_last_train and again.path_work == first.path_work
    assert again.real_seed == first.real_seed
    assert Path(first.path_meta, "dev.eval.pkl").read_bytes() == b"kept"


def test_version_4_names_the_run_to_restore_by_its_own_word():
    Path("work/run.old").mkdir(parents=True)

    class Old(ParamBase4):
        def __init__(self):
            super().__init__("old", restore_training_from_path_work="work/run.old")

    assert of(Old).path_work == "work/run.old"

    class Lost(ParamBase4):
        def __init__(self):
            super().__init__("old", restore_training_from_path_work="work/none")

    with pytest.raises(UsageError, match="no run to restore at work/none"):
        of(Lost)


def test_a_worker_gets_the_parameters_of_its_starter(monkeypatch, tmp_path):
    variant = list(of(Trained, lr=ParameterRange([0.5, 0.25])).generate_all_variants())[1]
    file = tmp_path / "param.pkl"
    file.write_bytes(pickle.dumps(variant))
    monkeypatch.setenv("param_file", str(file))
    loaded = of(Trained)
    assert (loaded.lr, loaded.path_work, loaded.run_seed) == (0.25, variant.path_work, variant.run_seed)


def test_debug_mode_settles_for_the_first_variant():
    param = of(Trained, lr=ParameterRange([0.5, 0.25]))
    param.use_first_variant()
    assert param.lr == 0.5 and param.is_instance()
