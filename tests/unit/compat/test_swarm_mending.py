"""Files that scripts for hivemind of 2023 import, and that stand in for what is gone."""

import pytest

from shoal.testing.extras import needs

pytestmark = [pytest.mark.torch, needs("hivemind", "torch")]


def test_the_stand_in_for_lamb_steps_as_the_package_does():
    import torch

    from shoal.compat.swarm.files.torch_optimizer import Lamb

    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    weight.grad = torch.tensor([1.0, -1.0])
    Lamb([weight], lr=0.1, eps=0.0, clamp_value=2.0, debias=True).step()
    # Along the gradient's sign, as long as the clamped norm; the start is corrected in the step's size.
    size = 0.1 * (1 - 0.999) ** 0.5 / (1 - 0.9)
    assert torch.allclose(weight, torch.tensor([3.0, 4.0]) - size * (2 / 2**0.5) * torch.tensor([1.0, -1.0]))


def test_the_stand_in_for_lamb_is_adam_where_told_so():
    import torch

    from shoal.compat.swarm.files.torch_optimizer import Lamb

    ours, theirs = (torch.nn.Parameter(torch.tensor([3.0, 4.0])) for _ in range(2))
    steps = Lamb([ours], lr=0.1, eps=0.0, adam=True, debias=True), torch.optim.Adam([theirs], lr=0.1, eps=0.0)
    for grad in ([1.0, -1.0], [0.5, 2.0]):
        for parameter, optimizer in zip((ours, theirs), steps, strict=True):
            parameter.grad = torch.tensor(grad)
            optimizer.step()
    assert torch.allclose(ours, theirs)
