"""Scripts written for hivemind and pydantic of 2023 import what they always did, in an interpreter of their own."""

import json
import subprocess
import sys

import pytest

from shoal.testing.extras import needs
from shoal.testing.patience import patient

pytestmark = [
    pytest.mark.torch,
    needs("hivemind"),
]

SCHEMAS = """
from typing import Dict
import pydantic
from pydantic import BaseModel, StrictFloat, conint
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator

class LocalMetrics(BaseModel):
    step: conint(ge=0, strict=True)
    loss: StrictFloat

class MetricSchema(BaseModel):
    metrics: Dict[BytesWithPublicKey, LocalMetrics]

validator = SchemaValidator(MetricSchema, prefix="run")
"""
SCRIPT = """
import json, sys
from NetmindMixins.Netmind import htp, hmp
early = "hivemind" in sys.modules or "torch" in sys.modules
import hivemind, pydantic, schemas
from hivemind import DHT, Float16Compression, Optimizer, get_dht_time, PeerID
from hivemind.optim.state_averager import TrainingStateAverager
import hivemind.optim.optimizer as inner
from torch_optimizer import Lamb
import torch_optimizer, utils
print(json.dumps({
    "early": early,
    "schemas": schemas.LocalMetrics(step=1, loss=2.0).dict(),
    "schemas of version": schemas.pydantic.VERSION.split(".")[0],
    "pydantic elsewhere": pydantic.VERSION.split(".")[0],
    "one optimizer": Optimizer is inner.Optimizer is hivemind.Optimizer,
    "averager inside": inner.TrainingStateAverager.__mro__[0] is TrainingStateAverager.__mro__[1],
    "averager's name": TrainingStateAverager.__name__,
    "own file first": utils.__file__.startswith(sys.path[0]),
    "files": torch_optimizer.__name__,
}))
"""


def test_old_names_old_schemas_and_missing_files_are_found_and_nothing_is_imported_early(tmp_path):
    (tmp_path / "schemas.py").write_text(SCHEMAS)
    (tmp_path / "utils.py").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "early": False,
        "schemas": {"step": 1, "loss": 2.0},
        "schemas of version": "1",
        "pydantic elsewhere": "2",
        "one optimizer": True,
        "averager inside": True,
        "averager's name": "TrainingStateAverager",
        "own file first": True,
        "files": "torch_optimizer",
    }
    assert not list(tmp_path.rglob("schemas*.pyc"))
