"""The callback for the Hugging Face Trainer, without a training. With real ones: tests/integration/test_hf_callback.py."""

from types import SimpleNamespace

import pytest

from shoal.core.errors import UsageError
from shoal.testing.extras import needs

pytestmark = needs("transformers")


def test_a_trainer_that_sees_one_worker_of_two_refuses_to_train_a_model_of_its_own(monkeypatch):
    from shoal.integrations.hf import ShoalCallback

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="2 workers, but the Trainer is set up for 1") as refused:
        ShoalCallback().on_train_begin(SimpleNamespace(world_size=1), SimpleNamespace(), None)
    assert "use_cpu=True" in refused.value.hint
