import pytest

import shoal.data
from shoal.core.errors import Refused

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

from torch.utils.data import DataLoader, IterableDataset  # noqa: E402


def only_id(record):
    return record["id"]


def loaded(loader):
    return [number for batch in loader for number in batch.tolist()]


@pytest.fixture
def make(numbers):
    folder = numbers(120, 91)

    def make(**options):
        return shoal.data.stream(folder, decode=only_id, **options)

    return make


def test_a_stream_is_an_iterable_dataset_and_a_view_a_dataset(make):
    assert isinstance(make(), IterableDataset)
    loader = DataLoader(make().as_map(), batch_size=10, shuffle=True, num_workers=1)
    assert sorted(loaded(loader)) == list(range(211))


def test_a_plain_dataloader_with_workers_gives_every_sample_once(make):
    assert sorted(loaded(DataLoader(make(), batch_size=8, num_workers=3))) == list(range(211))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_order_does_not_depend_on_workers(make, workers):
    order = list(make(rank=1, world_size=2, epoch=2))
    loader = make(rank=1, world_size=2).loader(batch_size=8, num_workers=workers)
    loader.set_epoch(2)
    assert loaded(loader) == order


def test_workers_that_persist_see_the_next_epoch(make):
    loader = make().loader(batch_size=20, num_workers=2, persistent_workers=True)
    for epoch in (0, 1, 2):
        loader.set_epoch(epoch)
        assert loaded(loader) == list(make(epoch=epoch))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_counts_what_was_handed_over_and_not_what_was_prefetched(make, workers):
    order = list(make(epoch=1))
    loader = make(epoch=1).loader(batch_size=8, num_workers=workers)
    batches = iter(loader)
    got = [number for _ in range(5) for number in next(batches).tolist()]
    state = loader.state_dict()
    assert got == order[:40]
    for after in (1, 3):
        for rank in range(after):
            resumed = make(rank=rank, world_size=after, tail="keep").loader(batch_size=5, num_workers=2)
            resumed.load_state_dict(state)
            resumed.set_epoch(1)
            assert loaded(resumed) == order[40:][rank::after]


def test_a_finished_pass_is_finished_and_the_next_starts_anew(make):
    loader = make().loader(batch_size=100, num_workers=2)
    assert len(loaded(loader)) == 211
    resumed = make().loader(batch_size=100, num_workers=2)
    resumed.load_state_dict(loader.state_dict())
    assert loaded(resumed) == []
    assert loaded(resumed) == list(make())


def test_forked_workers_read_parquet_that_their_parent_has_opened(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": list(range(1000))}), tmp_path / "a.parquet", row_group_size=100)
    stream = shoal.data.stream(tmp_path, decode=only_id)
    order = list(stream)
    assert loaded(stream.loader(batch_size=10, num_workers=2)) == order


def test_all_ranks_have_as_many_batches(make):
    shares = [list(make(rank=rank, world_size=4).loader(batch_size=7, num_workers=1)) for rank in range(4)]
    assert {tuple(map(len, share)) for share in shares} == {(7, 7, 7, 7, 7, 7, 7, 4)}


def test_a_worker_does_not_claim_to_know_the_state(make):
    class Asking(IterableDataset):
        def __init__(self, stream):
            self.stream = stream

        def __iter__(self):
            yield self.stream.state_dict()

    with pytest.raises(Refused, match="its own share"):
        list(DataLoader(Asking(make()), num_workers=1))


def test_ranks_come_from_torch_distributed(make, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert make().ranks() == (0, 1)
    finally:
        torch.distributed.destroy_process_group()
