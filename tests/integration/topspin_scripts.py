"""A small TopSpin project in the shape of 1.2.1. Its settings come from the environment."""

PARAM = """
import json, os
from topspin import ParamBase, ParameterRange

class Param(ParamBase):
  def __init__(self):
    given = json.loads(os.environ.get("GIVEN", "{}"))
    super().__init__("w0rk.work.small", given.pop("restore", None))
    self.optimizer_name, self.lr, self.weight_decay = "SGD", 1.0, 0
    self.param_norm, self.ending_lr_ratio, self.use_amp = 1e9, 1, False
    self.gpu_num, self.epoch_num, self.train_sample_num, self.eval_gap_sample_num = 2, 1, 8, 8
    self.batches, self.slow, self.fail, self.slots = 1, "", "", 2
    for name, value in given.items():
      is_range = isinstance(value, dict) and "range" in value
      setattr(self, name, ParameterRange(value["range"]) if is_range else value)
"""
TRAIN = """
import shoal.testing.light_torch
import os, time, torch
from param import Param
from topspin import ModelBase, PredictorBase, TrainerBase

class Model(ModelBase):
  def __init__(self, param):
    super().__init__(param)
    self.w = torch.nn.Parameter(torch.zeros(1))
  def forward(self, x):
    return self.w * x

class Predictor(PredictorBase):
  def __init__(self, param):
    super().__init__(Model(param))
  def evaluate_file(self, file):
    return float(self._model.w) * self._param.sign

class Trainer(TrainerBase):
  def __init__(self, param):
    super().__init__(Model(param), Predictor, None)
  def get_training_data(self, rank, world_size):
    first, second = ((1, 1.0), (1, 2.0)) if rank == 0 else ((3, 10.0), (3, 20.0))
    for step in range(self._param.batches):
      for count, value in (first, second):
        if self._param.slow:
          while not os.path.exists(self._param.slow) and step >= 3: time.sleep(0.02)
        yield step, torch.full((count, 1), value * (1 + step))
  def train_one_batch(self, x):
    if self._param.fail and self._rank == 1 and self._batch_id >= 2:
      raise ValueError(self._param.fail)
    return {"loss": self._model(x).mean()}

if __name__ == "__main__":
  torch.set_num_threads(1)
  Trainer(Param.get_instance()).train()
"""
AUTO = """
from param import Param
from topspin import starter
param = Param.get_instance()
starter.start_train(param, "train.py", [starter.Server(None, list(range(param.slots)))], run_tag="mine")
"""
DIST = """
from param import Param
from topspin import starter
starter.start_distributed_train(Param.get_instance(), "train.py")
"""
OTHER_TRAIN = (
    TRAIN.replace("from param import Param", "from other_param import Other")
    .replace("Param.get_instance", "Other.get_instance")
    .replace("return self.w * x", "return 10 * self.w * x")
)
OTHER_PARAM = """
from param import Param

class Other(Param):
  def __init__(self):
    super().__init__()
    self.path_work = "elsewhere/run.other"
"""
MANY = """
from other_param import Other
from param import Param
from topspin import starter

first, second, wide = Param.get_instance().clone(), Param.get_instance().clone(), Other.get_instance()
for param in (first, second):
  param.gpu_num, param.train_sample_num, param.eval_gap_sample_num = 1, 2, 2
second.lr = 2.0
tasks = [
  starter.Task(wide, "other_train.py"), starter.Task(first, "train.py"), starter.Task(second, "train.py")
]
servers = [starter.Server(None, [0, 1]), starter.Server("localhost", [5])]
print([result.status for result in starter.RunManager(tasks, servers).run()])
"""
