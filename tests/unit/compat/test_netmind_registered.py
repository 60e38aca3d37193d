import pytest

from shoal.compat.netmind import MockArg, NetmindCheckPoint
from shoal.compat.netmind.registered import Registered

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def model():
    return torch.nn.Linear(2, 1)


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_every_wrapper_gives_the_very_same_object_back(model, optimizer):
    registered = Registered()
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    loader = torch.utils.data.DataLoader([1, 2])
    assert registered.model(model) is model
    assert registered.optimizer(optimizer) is optimizer
    assert registered.scheduler(scheduler) is scheduler
    assert registered.loader(loader) is loader
    assert isinstance(registered.optimizer(optimizer), torch.optim.Optimizer)
    assert registered.optimizers == [optimizer]


def test_a_model_registered_bare_and_then_wrapped_is_one_model(model):
    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    registered, wrapped = Registered(), Wrapper(model)
    registered.model(model)
    registered.model(wrapped)
    assert registered.models == [wrapped]


def test_a_scheduler_nobody_registered_is_found_by_its_optimizer(model, optimizer):
    registered = Registered()
    registered.optimizer(optimizer)
    mine = torch.optim.lr_scheduler.LinearLR(optimizer)
    other = torch.optim.lr_scheduler.LinearLR(torch.optim.SGD(model.parameters(), lr=0.1))
    registered.find_schedulers()
    assert registered.schedulers == [mine]
    assert other not in registered.schedulers


def test_a_scheduler_made_of_others_counts_once(optimizer):
    registered = Registered()
    registered.optimizer(optimizer)
    parts = [torch.optim.lr_scheduler.LinearLR(optimizer), torch.optim.lr_scheduler.ConstantLR(optimizer)]
    whole = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [3])
    registered.find_schedulers()
    assert registered.schedulers == [whole]


def test_a_scheduler_that_comes_late_is_told_of(optimizer):
    registered, told = Registered(), []
    registered.on_scheduler = told.append
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    registered.scheduler(scheduler)
    registered.scheduler(scheduler)
    assert told == [scheduler]


def test_a_checkpoints_weights_go_into_a_model_in_place(tmp_path, model):
    torch.save({k: v + 1 for k, v in model.state_dict().items()}, tmp_path / "model.pt")
    before = model.weight.detach().clone()
    assert NetmindCheckPoint(tmp_path).load_model(model) is model
    assert torch.equal(model.weight, before + 1)
    assert NetmindCheckPoint(tmp_path).step is None


def test_a_folder_without_weights_says_what_it_lacks(tmp_path, model):
    with pytest.raises(FileNotFoundError, match=r"model\.pt"):
        NetmindCheckPoint(tmp_path).load_model(model)


def test_mock_arguments_answer_none_for_what_was_not_set():
    args = MockArg(learning_rate=0.1)
    assert (args.learning_rate, args.batch_size) == (0.1, None)


def test_the_import_name_of_the_original_leads_here():
    import NetmindMixins.Netmind as shim
    from shoal.compat import netmind

    for name in netmind.__all__:
        assert getattr(shim, name) is getattr(netmind, name)
    with pytest.raises(ImportError, match="PyTorch"):
        shim.TensorflowTrainerCallback  # noqa: B018
    with pytest.raises(AttributeError):
        shim.nothing  # noqa: B018
