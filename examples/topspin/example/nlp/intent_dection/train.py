# ruff: noqa
# fmt: off
# mypy: ignore-errors
# As printed in TopSpin's README, but for the imports and the last lines.
from example.nlp.intent_dection.dataset import get_batch_data
from example.nlp.intent_dection.model_wrapper import ModelWrapper
from example.nlp.intent_dection.param import Param
from palframe.pytorch import *
from palframe.pytorch.estimator4.train import TrainerBase

class Trainer(TrainerBase):
  def __init__(self, param):

    super(Trainer, self).__init__(
      ModelWrapper(param),
      get_batch_data(param, param.train_files, param.epoch_num, True),
      None
    )

  def train_one_batch(self, b_word_ids, b_label):
    logits, pred_labels = self._model_wrapper.predict(b_word_ids)
    return nn.functional.cross_entropy(logits, b_label, reduction="mean")


if __name__ == "__main__":
  Trainer(Param.get_instance()).train()
