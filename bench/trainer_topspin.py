"""The original TopSpin 1.2.1 in bench/trainer.py, from the folder BENCH_TOPSPIN.

Its dependency pyal is on no package index (any more); the four small names it needs of it are made here. Its distributed mode
looks for GPUs by rank and finds -1 here, which it takes for the CPU.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from typing import Any

from trainer_worker import BATCH, ENDLESS, LR, SAMPLES, make_data, make_model


def train(pace: Any) -> None:
    sys.path.insert(0, os.environ["BENCH_TOPSPIN"])
    if importlib.util.find_spec("pyal") is None:
        pyal: Any = types.ModuleType("pyal")
        pyal.INF, pyal.EPSILON = float("inf"), 1e-6
        pyal.is_none_or_empty = lambda value: (
            value is None or (isinstance(value, str | list | tuple | dict) and not value)
        )
        pyal.eq = lambda a, b: abs(a - b) < 1e-6
        sys.modules["pyal"] = pyal
    os.environ |= {"DIST_RUN": "1", "avail_gpus": "-1,-1", "worker_IP": "127.0.0.1"}
    from torch.utils.data import DataLoader, DistributedSampler

    from topspin import ModelBase, ParamBase, TrainerBase

    class Param(ParamBase):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("bench")
            self.path_work = "work/run.bench"
            self.lr, self.use_amp, self.num_threads_cpu, self.net_name = LR, False, 1, "lo"
            self.batch_size_one_gpu, self.max_train_step, self.train_sample_num = BATCH, ENDLESS, SAMPLES
            self.eval_gap_sample_num, self.draw_figure_frequency = 10**12, 10**12

    class Wrapped(ModelBase):  # type: ignore[misc]
        def __init__(self, param: Any):
            super().__init__(param)
            self.net = make_model()

        def forward(self, x: Any, y: Any) -> Any:
            return self.net(x, y)

    class Bench(TrainerBase):  # type: ignore[misc]
        begun = False

        def train_one_batch(self, x: Any, y: Any) -> dict[str, Any]:
            if self.begun:
                pace()  # the step before is over
            self.begun = True
            return {"loss": self._model(x, y)}

        def get_training_data(self, rank: int, world_size: int) -> Any:
            data = make_data()
            loader: Any = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, shuffle=True))
            return ((epoch, batch) for epoch in range(ENDLESS) for batch in loader)

    param = Param.get_instance()
    for folder in ("model", "log", "meta", "bug"):
        os.makedirs(f"{param.path_work}/{folder}", exist_ok=True)  # noqa: PTH103
    Bench(Wrapped(param), None, None).train()
