"""TopSpin's parameters: a class with one instance per process. Any attribute may have a ParameterRange of values to try."""

from __future__ import annotations

import abc
import copy
import itertools
import os
import pickle
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from shoal.compat.topspin import seeds
from shoal.compat.topspin.attributes import Alias, Choice, OnGpu, PathWork, TrueGradient
from shoal.compat.topspin.logs import Logger, get_log_time
from shoal.core.errors import UsageError
from shoal.core.param_grid import axes
from shoal.train.preflight import data_paths

PARAM_FILE = "param_file"
"""Environment variable with the file of a worker's parameters."""


class ParameterRange:
    """Values to try. Ranges with `grouped_attribute` change together; all others are combined with each other."""

    def __init__(self, values: Sequence[Any], grouped_attribute: bool = False):
        self.values = list(values)
        self.grouped_attribute = grouped_attribute
        if not self.values:
            raise UsageError("a ParameterRange needs at least one value", hint="ParameterRange([1e-4, 3e-4])")

    def __repr__(self) -> str:
        return f"ParameterRange({self.values!r}{', True' if self.grouped_attribute else ''})"


class ParamBase(abc.ABC):
    """Base class of parameters. Set attributes in `__init__` and get the only instance with `Param.get_instance()`."""

    instances: ClassVar[dict[str, ParamBase]] = {}
    _opened: ClassVar[set[str]] = set()
    _clones: ClassVar[itertools.count[int]] = itertools.count()
    _workspace_created = False

    path_work: Any = PathWork()
    use_gpu: Any = OnGpu()
    lr_decay_strategy: Any = Choice("linear", "stepwise_sgd")
    true_gradient: Any = TrueGradient()
    # Names of version 4.
    batch_size: Any = Alias("batch_size_one_gpu")
    model_kept_num: Any = Alias("model_saved_num")

    def __init__(
        self,
        run_tag: str,
        path_work_restored_training: str | None = None,
        experiment_folder: str = "work",
        country_city: str = "",
        *,
        restore_training_from_path_work: str | None = None,
    ):
        self._check_opened()
        self.seed = 0
        self.country_city = Logger.country_city = country_city
        restored = path_work_restored_training or restore_training_from_path_work
        self.restore_from_last_train = bool(restored)
        if restored:
            if not Path(restored).is_dir():
                raise UsageError(f"there is no run to restore at {restored}", hint="give the path_work of a run")
            self.run_tag = run_tag
            self.path_work = restored
        else:
            if not run_tag:
                raise UsageError("a run needs a tag", hint='super().__init__("my_task")')
            self.run_tag = f"{run_tag}.{get_log_time(country_city=country_city)}"
            self.path_work = _unused(f"{experiment_folder}/run.{self.run_tag}")
        self.run_seed = seeds.kept_in(self.path_meta) or secrets.randbelow(2**31 - 1) + 1
        self._set_defaults()

    def _set_defaults(self) -> None:
        self.optimizer_name = "AdamW"
        self.lr: Any = 0.001
        self.gpu_num: Any = 1
        self.use_gpu = False
        self.use_amp: Any = True
        self.path_initial_model: Any = None
        self.path_inference_model: Any = None
        self.lr_decay_strategy = "linear"
        self.warmup_ratio: Any = 0.0
        self.ending_lr_ratio: Any = 1e-5
        self.stepwise_lr_decay_ratio: Any = 0.1
        self.stepwise_lr_decay_epochs: Any = 30
        self.weight_decay: Any = 0.01
        self.param_norm: Any = 1
        self.gpu_inference: Any = 0
        self.batch_dim = 0
        self.servers_file: Any = None
        self.bucket_cap_mb: Any = 25
        self.backhand = "gloo"
        self.net_name: str | None = None
        self.variable_batch_size: Any = {"<=30": 100, "<=128": 30}
        self.batch_size_one_gpu: Any = None
        self.iter_num_update_optimizer: Any = 1
        self.train_files: Any = ""
        self.vali_file: Any = ""
        self.test_files: Any = ""
        self.train_sample_num: Any = None
        self.epoch_num: Any = None
        self.max_train_step: Any = None
        self.eval_gap_sample_num: Any = None
        self.find_unused_parameters: Any = True
        self.model_saved_num: Any = 3
        self.num_threads_cpu: Any = 4
        self.num_workers_loading_data: Any = 2
        self.automl_max_model_size: Any = None
        self.true_gradient = False
        self.debug_level: Any = 1
        self.detect_anomaly: Any = False
        self.cudnn_deterministic = True
        self.cudnn_benchmark = False
        self.draw_figure_frequency: Any = 1000
        self.draw_figure_smooth_width: Any = [1, 256]

    @classmethod
    def get_instance(cls) -> Self:
        """Return the only instance of this process: the starter's parameters in a worker, else a new one."""
        key = str(cls)
        if key not in ParamBase.instances:
            file = os.environ.get(PARAM_FILE)
            if file:
                Logger.info(f"loading param from '{file}'")
                param = pickle.loads(Path(file).read_bytes())  # noqa: S301  the starter's own file
            else:
                ParamBase._opened.add(key)
                param = cls()  # type: ignore[call-arg]  # subclasses take no arguments
            ParamBase.instances[key] = param
            if isinstance(param.seed, int):
                seeds.seed_generators(param.seed)
                seeds.begin(param.real_seed)
        found: Any = ParamBase.instances[key]
        return found  # type: ignore[no-any-return]

    @property
    def real_seed(self) -> int:
        """`seed`, or if that is 0 (random), the seed drawn for this run, which a restored run uses again."""
        return int(self.seed or self.run_seed)

    def is_instance(self) -> bool:
        """Return True if no attribute has a ParameterRange."""
        return not any(isinstance(v, ParameterRange) for v in vars(self).values())

    def generate_all_variants(self) -> Iterator[Self]:
        """Yield all combinations of the ranges' values. The first attribute changes slowest, groups fastest."""
        ranges = {name: v for name, v in vars(self).items() if isinstance(v, ParameterRange)}
        if not ranges:
            yield self
            return
        columns = [(name, r.values, "grouped_attribute" if r.grouped_attribute else None) for name, r in ranges.items()]
        for number, chosen in enumerate(itertools.product(*axes(columns))):
            variant = self._copied(f"{self.path_work}.automl_{number}")
            for part in chosen:
                vars(variant).update(copy.deepcopy(part))
            if variant.true_gradient:
                variant.use_amp = False
            yield variant

    def clone(self) -> Self:
        """Return a copy with a work folder of its own."""
        return self._copied(f"{self.path_work}.clone_{next(ParamBase._clones)}")

    def use_first_variant(self) -> None:
        """Replace ranges by the values of the first variant, for debug mode, which runs a single training."""
        if not self.is_instance():
            first = next(self.generate_all_variants())
            Logger.warn(f"debug mode runs the first of the variants: {first.path_work}")
            vars(self).clear()
            vars(self).update(vars(first))

    def create_workspace(self) -> None:
        """Create the work folder. Existing files stay."""
        self.check_param_validity()
        Logger.info(f"ParamBase.create_workspace: {self.path_work}")
        for folder in (self.path_model, self.path_log, self.path_meta, self.path_bug):
            Path(folder).mkdir(parents=True, exist_ok=True)
        if self.restore_from_last_train:
            self.run_seed = seeds.kept_in(self.path_meta) or self.run_seed
        (Path(self.path_meta) / "seed").write_text(str(self.run_seed))
        self._workspace_created = True

    def size_divided_by_16(self, size: float, unit: int = 16) -> int:
        """Return the next multiple of 16, which suits tensor cores."""
        return int(-(-size // unit) * unit)

    def display(self) -> None:
        Logger.info("-" * 64)
        for name in sorted(vars(self)):
            Logger.info(f"{name:20}: {vars(self)[name]}")
        Logger.info("-" * 64)

    def check_param_validity(self) -> None:
        """Raise UsageError with all problems, if there are any."""
        wrong = []
        if (self.epoch_num is None) == (self.max_train_step is None):
            wrong.append("set exactly one of epoch_num and max_train_step")
        if self.max_train_step is not None and self.batch_size_one_gpu is None:
            wrong.append("with max_train_step set batch_size_one_gpu too")
        if self.train_sample_num is None:
            wrong.append("set train_sample_num, the number of samples in an epoch")
        if self.eval_gap_sample_num is None:
            wrong.append("set eval_gap_sample_num, e.g. to train_sample_num")
        if not isinstance(self.gpu_num, ParameterRange) and self.gpu_num < 1:
            wrong.append(f"gpu_num is {self.gpu_num}, and should be above 0")
        wrong += [f"E3: there is no {p}" for p in self.data_paths() if not Path(p).expanduser().exists()]
        if wrong:
            raise UsageError(f"{type(self).__name__}: {'; '.join(wrong)}")

    def data_paths(self) -> list[str]:
        """Return the paths of training, validation and test data in all variants."""
        given = (self.train_files, self.vali_file, self.test_files)
        return data_paths(*(v.values if isinstance(v, ParameterRange) else v for v in given))

    def _copied(self, path_work: str) -> Self:
        copied = copy.deepcopy(self)
        copied._workspace_created = False
        copied.path_work = path_work
        return copied

    def _check_opened(self) -> None:
        key = str(type(self))
        if key in ParamBase.instances or key not in ParamBase._opened:
            raise UsageError(
                f"{type(self).__name__} has one instance per process and cannot be created by calling the class",
                hint=f"{type(self).__name__}.get_instance()",
            )

    path_model: str
    path_log: str
    path_meta: str
    path_bug: str
    run_lock_file: str
    bug_lock_file: str


class ParamBase4(ParamBase):
    """ParamBase with the defaults of version 4 (palframe.pytorch.estimator4)."""

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self.optimizer_name = "Adam"
        self.weight_decay = 0
        self.use_gpu = True
        self.gpus = [0]
        self.batch_size_one_gpu = 10
        self.warmup_ratio = 0.1
        self.ending_lr_ratio = 0.001
        self.num_workers_loading_data = 4
        self.train_files = self.vali_file = self.test_files = None


class ParamBase5(ParamBase):
    """ParamBase with the defaults of version 5 (palframe.pytorch.estimator5)."""

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self.use_gpu = True
        self.gpus = [0]


def _unused(path: str) -> str:
    """Return a path that does not exist, as two runs may start in the same second."""
    if not Path(path).exists():
        return path
    return next(p for n in itertools.count(2) if not Path(p := f"{path}-{n}").exists())
