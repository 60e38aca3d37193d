# ruff: noqa
# fmt: off
# mypy: ignore-errors
# As printed in TopSpin's README, but for the imports.
from example.nlp.intent_dection.param import Param
from palframe.pytorch.estimator4 import starter

if __name__ == "__main__":
  starter.start_train(
    Param.get_instance(), 
    "example/nlp/intent_dection/train.py",
    [starter.Server(None, [1, 3, 4, 6, 7])]
  )
