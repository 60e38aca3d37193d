import importlib.util

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """Models of these sizes are slower on several."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
