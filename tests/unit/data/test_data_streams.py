import importlib.util
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal.data
from shoal.core.errors import InvalidSpec, MissingExtra, NotFound

slow_fixtures = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def test_every_record_comes_once_and_shuffled(numbers, ids):
    folder = numbers(500, 300, 0, 201)
    order = ids(folder)
    assert sorted(order) == list(range(1001))
    assert order != sorted(order)


def test_unshuffled_records_come_in_the_order_of_the_files(numbers, ids):
    assert ids(numbers(500, 300, 201), shuffle=False) == list(range(1001))


def test_the_order_depends_on_seed_and_epoch(numbers, ids):
    folder = numbers(400)
    orders = [ids(folder, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert ids(folder) == orders[0]


def test_the_order_is_the_same_whether_blocks_have_been_counted_or_not(numbers, ids, own_surroundings, monkeypatch):
    folder = numbers(3000, 2000, padding=300)
    first = ids(folder)
    assert ids(folder) == first
    monkeypatch.setenv("SHOAL_DATA_CACHE", str(own_surroundings / "another"))
    assert ids(folder, rank=1, world_size=3) == first[1::3]
    assert ids(folder, rank=1, world_size=3) == first[1::3]


def test_neighbours_come_from_all_over_the_dataset(numbers, ids):
    first = ids(numbers(40_000, padding=100))[:200]
    assert max(first) - min(first) > 30_000


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 48, 50])
def test_ranks_share_one_order_among_them(numbers, ids, world_size):
    folder = numbers(240, 161)
    order = ids(folder)
    shares = [ids(folder, rank=rank, world_size=world_size, tail="keep") for rank in range(world_size)]
    assert shares == [order[rank::world_size] for rank in range(world_size)]


class TestTail:
    @pytest.mark.parametrize("length", [0, 1, 2, 5, 100, 101, 103])
    @pytest.mark.parametrize("world_size", [1, 4, 7])
    def test_padding_gives_all_ranks_as_many_samples(self, numbers, ids, length, world_size):
        folder = numbers(length)
        order = ids(folder)
        shares = [ids(folder, rank=rank, world_size=world_size) for rank in range(world_size)]
        rounds = -(-length // world_size)
        assert [len(share) for share in shares] == [rounds] * world_size
        dealt = [share[turn] for turn in range(rounds) for share in shares]
        assert dealt[:length] == order
        assert dealt[length:] == [order[n % length] for n in range(len(dealt) - length)]

    @pytest.mark.parametrize("length", [0, 1, 5, 100, 103])
    def test_dropping_leaves_out_the_last_incomplete_round(self, numbers, ids, length):
        folder = numbers(length)
        order = ids(folder)
        shares = [ids(folder, rank=rank, world_size=4, tail="drop") for rank in range(4)]
        assert shares == [order[: length // 4 * 4][rank::4] for rank in range(4)]

    def test_an_unknown_rule_is_refused(self, numbers):
        with pytest.raises(InvalidSpec, match="tail"):
            shoal.data.stream(numbers(1), tail="cut")


class TestResume:
    @given(st.integers(0, 90), st.integers(1, 5), st.integers(1, 5), st.sampled_from(["pad", "keep", "drop"]))
    @slow_fixtures
    def test_any_number_of_ranks_goes_on_exactly_where_any_other_stopped(
        self, tmp_path_factory, steps, before, after, tail
    ):
        folder = tmp_path_factory.mktemp("data")
        (folder / "a.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(211)))
        order = [r["id"] for r in shoal.data.stream(folder, epoch=3)]
        # As far as the rank that has the fewest samples gets; beyond, its epoch is over.
        steps = min(steps, len(order) // before)
        done = steps * before
        state = _after(folder, steps, rank=before - 1, world_size=before, tail=tail)
        assert state["position"] == done
        rest = order[done:]
        for rank in range(after):
            resumed = shoal.data.stream(folder, rank=rank, world_size=after, tail="keep")
            resumed.load_state_dict(state)
            assert [r["id"] for r in resumed] == rest[rank::after]

    def test_a_state_is_plain_data(self, numbers):
        import json

        state = shoal.data.stream(numbers(5)).state_dict()
        assert json.loads(json.dumps(state)) == state

    def test_it_goes_on_near_where_it_was(self, tmp_path, own_surroundings, monkeypatch):
        for n in range(200):
            (tmp_path / f"{n:03}.txt").write_text(f"{n}-a\n{n}-b\n")
        order = list(shoal.data.stream(tmp_path))
        monkeypatch.setenv("SHOAL_DATA_CACHE", str(own_surroundings / "other"))
        stream = shoal.data.stream(tmp_path)
        for _ in zip(range(250), stream, strict=False):
            pass
        state = stream.state_dict()
        assert 150 <= state["place"][0] <= 250
        monkeypatch.setenv("SHOAL_DATA_CACHE", str(own_surroundings / "another"))  # where nothing is counted
        resumed = shoal.data.stream(tmp_path)
        resumed.load_state_dict(state)
        assert list(resumed) == order[250:]
        list(resumed)
        assert resumed.reader.index.is_complete
        counted = iter(resumed)
        assert [next(counted) for _ in range(250)] == order[:250]
        assert 150 <= resumed.state_dict()["place"][0] <= 250

    def test_a_resumed_pass_can_be_saved_and_resumed_again(self, numbers, ids):
        folder = numbers(300)
        order = ids(folder)
        state, got = None, []
        while len(got) < 300:
            stream = shoal.data.stream(folder)
            if state:
                stream.load_state_dict(state)
            got += [record["id"] for record, _ in zip(stream, range(70), strict=False)]
            state = stream.state_dict() if len(got) < 300 else state
            # zip took one record more than it gave; a state counts what was taken
            if len(got) < 300:
                state |= {"position": len(got)}
        assert got == order

    def test_a_finished_epoch_has_nothing_left_and_the_next_begins_anew(self, numbers, ids):
        folder = numbers(100)
        stream = shoal.data.stream(folder, epoch=2)
        list(stream)
        again = shoal.data.stream(folder)
        again.load_state_dict(stream.state_dict())
        assert (again.epoch, list(again)) == (2, [])
        again.set_epoch(3)
        assert [r["id"] for r in again] == ids(folder, epoch=3)

    def test_setting_the_loaded_epoch_again_keeps_the_place(self, numbers, ids):
        folder = numbers(100)
        stream = shoal.data.stream(folder, epoch=4)
        iterator = iter(stream)
        for _ in range(30):
            next(iterator)
        resumed = shoal.data.stream(folder)
        resumed.load_state_dict(stream.state_dict())
        resumed.set_epoch(4)
        assert [r["id"] for r in resumed] == ids(folder, epoch=4)[30:]
        assert [r["id"] for r in resumed] == ids(folder, epoch=4)

    def test_a_state_of_other_data_or_another_order_is_refused(self, numbers, tmp_path):
        folder = numbers(10)
        state = shoal.data.stream(folder).state_dict()
        with pytest.raises(InvalidSpec, match="seed"):
            shoal.data.stream(folder, seed=1).load_state_dict(state)
        (folder / "more.jsonl").write_text('{"id": 10}\n')
        with pytest.raises(InvalidSpec, match="other files"):
            shoal.data.stream(folder).load_state_dict(state)
        with pytest.raises(InvalidSpec):
            shoal.data.stream(folder).load_state_dict({})


class TestRanks:
    def test_ranks_come_from_the_environment(self, numbers, ids, monkeypatch):
        folder = numbers(100)
        order = ids(folder)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert ids(folder) == order[1::4]

    def test_arguments_win_over_the_environment(self, numbers, ids, monkeypatch):
        folder = numbers(100)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert len(ids(folder, rank=0, world_size=1)) == 100

    @pytest.mark.parametrize(
        "given", [{"rank": 1}, {"world_size": 2}, {"rank": 2, "world_size": 2}, {"rank": -1, "world_size": 2}]
    )
    def test_impossible_ranks_are_refused(self, numbers, given):
        with pytest.raises(InvalidSpec):
            shoal.data.stream(numbers(1), **given)

    def test_a_rank_that_is_not_a_number_is_refused(self, numbers, monkeypatch):
        monkeypatch.setenv("RANK", "one")
        with pytest.raises(InvalidSpec, match="RANK"):
            shoal.data.stream(numbers(1))


def test_records_pass_through_decode(numbers):
    stream = shoal.data.stream(numbers(5), shuffle=False, decode=lambda record: record["id"] * 10)
    assert list(stream) == [0, 10, 20, 30, 40]


def test_a_pickled_stream_gives_the_same(numbers, ids):
    folder = numbers(50)
    copy = pickle.loads(pickle.dumps(shoal.data.stream(folder, epoch=2)))
    assert [r["id"] for r in copy] == ids(folder, epoch=2)


def test_an_empty_dataset_is_an_empty_stream(tmp_path, ids):
    assert list(shoal.data.stream(tmp_path)) == []
    assert len(shoal.data.stream(tmp_path).as_map()) == 0


def test_a_missing_dataset_is_said_to_be_missing(tmp_path):
    with pytest.raises(NotFound, match="nowhere"):
        shoal.data.stream(tmp_path / "nowhere")
    with pytest.raises(NotFound, match="pattern"):
        shoal.data.stream(f"{tmp_path}/*.jsonl")


def test_a_malformed_record_is_named_with_its_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": \n')
    with pytest.raises(InvalidSpec, match=r"a\.jsonl is malformed"):
        list(shoal.data.stream(tmp_path))


class TestWithoutTorch:
    @pytest.fixture(autouse=True)
    def no_torch(self, monkeypatch):
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find(name, *more)
        )

    def test_a_stream_is_a_plain_iterable(self, numbers):
        stream = shoal.data.stream(numbers(10))
        assert type(stream) is shoal.data.Stream
        assert sorted(r["id"] for r in stream) == list(range(10))
        assert type(stream.as_map()) is shoal.data.MapView

    def test_a_loader_says_what_is_missing(self, numbers):
        with pytest.raises(MissingExtra, match="torch"):
            shoal.data.stream(numbers(10)).loader()


class TestMap:
    def test_records_have_numbers_in_the_order_of_the_files(self, numbers):
        view = shoal.data.stream(numbers(300, 0, 250, padding=50)).as_map()
        assert len(view) == 550
        assert [view[i]["id"] for i in (0, 1, 299, 300, 549, -1, -550)] == [0, 1, 299, 300, 549, 549, 0]

    def test_a_number_too_large_is_an_index_error(self, numbers):
        view = shoal.data.stream(numbers(3)).as_map()
        for index in (3, -4):
            with pytest.raises(IndexError):
                view[index]

    def test_it_decodes(self, numbers):
        view = shoal.data.stream(numbers(3), decode=lambda record: record["id"] + 1).as_map()
        assert [view[i] for i in range(3)] == [1, 2, 3]

    def test_a_changed_file_is_counted_anew(self, tmp_path):
        file = tmp_path / "a.txt"
        file.write_text("aa\nbb\n")
        assert len(shoal.data.stream(tmp_path).as_map()) == 2
        file.write_text("aaaa\n\n"[:6])
        os.utime(file, (1, 1))
        assert list(shoal.data.stream(tmp_path, shuffle=False)) == ["aaaa", ""]


def test_importing_costs_nothing():
    probe = "import sys, shoal.data; print(sorted({'torch', 'fsspec', 'pyarrow', 'httpx'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _after(folder, steps, **options):
    """The state after so many samples of epoch 3."""
    stream = shoal.data.stream(folder, epoch=3, **options)
    iterator = iter(stream)
    for _ in range(steps):
        next(iterator, None)
    return stream.state_dict()
