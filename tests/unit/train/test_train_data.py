"""Small, Records, Variable, Online: each sample once per epoch, on any number of ranks, broken off and gone on anywhere."""

from __future__ import annotations

import json
import pickle
import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from data_probe import Ranks, by_epoch, flat  # noqa: E402

from shoal.core.errors import UsageError  # noqa: E402
from shoal.train.data import Online, Records, Small, Variable, write_records  # noqa: E402

sizes = st.integers(1, 90)
worlds = st.integers(1, 6)
quick = settings(max_examples=15, deadline=None)


def read_numbers(path):
    """Samples of a file that holds `first last`."""
    first, last = path.read_text().split()
    yield from range(int(first), int(last))


def read_lines(path):
    yield from map(int, path.read_text().split())


@pytest.fixture(scope="module")
def makers(tmp_path_factory):
    """Name → (size, batch_size) → a maker of data over range(size)."""
    folder = tmp_path_factory.mktemp("data")

    def small(size, batch_size):
        return partial(Small, list(range(size)), batch_size)

    def records(size, batch_size):
        path = folder / f"{size}.bin"
        if not path.exists():
            write_records(path, range(size), encode=lambda n: str(n).encode())
        return partial(Records, path, batch_size, decode=int)

    def variable(size, batch_size):
        lengths = [1 + n * 7 % 10 for n in range(size)]
        return partial(Variable, list(range(size)), {"<=3": 2 * batch_size, "<=10": batch_size}, length=lengths)

    def online(size, batch_size):
        files = [folder / f"{size}.{part}.numbers" for part in range(3)]
        bounds = [0, size // 3, size // 2, size]
        for part, file in enumerate(files):
            file.write_text(f"{bounds[part]} {bounds[part + 1]}")
        return partial(Online, files, batch_size, read=read_numbers, shuffle_buffer=16)

    def streamed(size, batch_size):
        lines = folder / f"{size}.lines"
        if not lines.exists():
            lines.mkdir()
            for part in range(3):
                text = "".join(f"{number}\n" for number in range(part, size, 3))
                (lines / f"{part}.jsonl").write_text(text)
        return partial(Online, str(lines), batch_size, shuffle_buffer=16)

    return {"small": small, "records": records, "variable": variable, "online": online, "streamed": streamed}


KINDS = ["small", "records", "variable", "online", "streamed"]


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(size=sizes, batch_size=st.integers(1, 9), world=worlds, seed=st.integers(0, 99), shuffle=st.booleans())
def test_every_sample_comes_once_per_epoch(makers, kind, size, batch_size, world, seed, shuffle):
    size = max(size, world)
    found = Ranks(makers[kind](size, batch_size), world, epochs=2, seed=seed, shuffle=shuffle).batches()
    epochs = by_epoch(found)
    assert {epoch: sorted(samples) for epoch, samples in epochs.items()} == {
        0: list(range(size)),
        1: list(range(size)),
    }
    most = 2 * batch_size if kind == "variable" else batch_size
    for _, shares in found:
        assert all(shares), "no rank is left without"
        assert max(map(len, shares)) <= max(most, 2)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1, "shares are even"


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(size=sizes, batch_size=st.integers(1, 9), world=worlds, after=st.integers(0, 40), seed=st.integers(0, 9))
def test_broken_off_anywhere_it_goes_on_with_the_next_batch(makers, kind, size, batch_size, world, after, seed):
    make = makers[kind](max(size, world), batch_size)
    whole = Ranks(make, world, epochs=2, seed=seed).batches()
    first = Ranks(make, world, epochs=2, seed=seed)
    before = first.batches(after)
    state = json.loads(json.dumps(first.state()))
    rest = Ranks(make, world, epochs=2, seed=seed).load(state).batches()
    assert before + rest == whole


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(
    size=st.integers(6, 90),
    batch_size=st.integers(1, 9),
    stops=st.lists(st.tuples(st.integers(0, 12), worlds), min_size=1, max_size=4),
)
def test_on_another_number_of_ranks_no_sample_is_lost(makers, kind, size, batch_size, stops):
    make = makers[kind](size, batch_size)
    found, state = [], None
    for after, world in [*stops, (10_000, 1)]:
        ranks = Ranks(make, world, epochs=2)
        if state is not None:
            ranks.load(state)
        found += ranks.batches(after)
        state = ranks.state()
    epochs = by_epoch(found)
    for samples in epochs.values():
        assert set(samples) == set(range(size))
        # Only a rest smaller than the number of ranks that takes it over may come twice in part.
        assert len(samples) - size < 6
    one_world = {world for _, world in stops}
    if one_world == {1}:
        assert all(len(samples) == size for samples in epochs.values())


def test_the_order_depends_on_seed_and_epoch_alone(makers):
    for kind in ("small", "records", "online"):
        make = makers[kind](60, 4)
        once, again = (Ranks(make, 1, epochs=2, seed=3).batches() for _ in range(2))
        assert once == again
        assert by_epoch(once)[0] != by_epoch(once)[1]
        assert flat(once) != flat(Ranks(make, 1, epochs=2, seed=4).batches())
        assert flat(Ranks(make, 3, epochs=1, seed=3).batches()) == by_epoch(once)[0], "dealt, it is the same order"
        assert flat(Ranks(make, 1, epochs=1, shuffle=False).batches()) == list(range(60))


def test_without_an_end_it_goes_on_and_on():
    data = iter(Small([1, 2, 3], 2, rank=0, world=1))
    assert [next(data)[0] for _ in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 4]


def test_the_number_of_batches_is_known_beforehand():
    for size, batch_size, world in [(1, 1, 1), (10, 3, 1), (100, 7, 3), (64, 8, 4), (7, 1, 3), (1000, 9, 5)]:
        data = Small(list(range(size)), batch_size, rank=0, world=world, epochs=1)
        assert data.batches == len(list(data))


def drawn(sample):
    return sample, random.random(), float(torch.rand(()))


@pytest.mark.parametrize("kind", ["small", "online"])
def test_augmentations_follow_from_the_sample_and_leave_the_scripts_numbers_alone(makers, kind):
    def make(**options):
        made = makers[kind](12, 3)
        return made(decode=drawn, **options)

    torch.manual_seed(5)
    expected = float(torch.rand(()))
    torch.manual_seed(5)
    one = flat(Ranks(make, 1, epochs=2).batches())
    assert float(torch.rand(())) == expected, "the script draws what it would have drawn"
    assert one == flat(Ranks(make, 1, epochs=2).batches())
    assert {a for _, a, _ in one[:12]}.isdisjoint({a for _, a, _ in one[12:]}), "another epoch, other numbers"
    assert sorted(one) == sorted(flat(Ranks(make, 3, epochs=2).batches())), "whichever rank draws them"


def test_by_default_the_environment_says_which_rank_this_is(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [batch.tolist() for _, batch in Small(list(range(4)), 1, epochs=1, shuffle=False)] == [[1], [3]]


def test_files_are_read_by_their_ending(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n\n{"x": 2}\n')
    (tmp_path / "b.json").write_text('[{"x": 3}]')
    torch.save([{"x": 4}], tmp_path / "c.pt")
    with (tmp_path / "d.pkl").open("wb") as file:
        pickle.dump({"x": 5}, file)
        pickle.dump({"x": 6}, file)
    with (tmp_path / "e.pkl").open("wb") as file:
        pickle.dump([{"x": 7}, {"x": 8}], file)
    for source in (tmp_path, str(tmp_path / "*.*"), sorted(tmp_path.iterdir())):
        data = Small(source, 8, epochs=1, shuffle=False, rank=0, world=1)
        assert [batch["x"].tolist() for _, batch in data] == [[1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_stream_of_the_platform_is_dealt_and_gone_on_with(tmp_path):
    for part in range(4):
        lines = [json.dumps(part * 10 + n) for n in range(10)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    make = partial(Online, str(tmp_path), 4)
    whole = Ranks(make, 2, epochs=2, seed=1).batches()
    assert sorted(by_epoch(whole)[0]) == list(range(40)) and sorted(by_epoch(whole)[1]) == list(range(40))
    for after in (0, 3, 5, 7):
        first = Ranks(make, 2, epochs=2, seed=1)
        before = first.batches(after)
        rest = Ranks(make, 2, epochs=2, seed=1).load(first.datas[0].state_dict()).batches()
        assert before + rest == whole


@pytest.mark.parametrize(("world", "workers"), [(2, 0), (4, 0), (4, 2)])
@pytest.mark.parametrize("lines", [21, 17, 16])
def test_a_stream_that_does_not_divide_by_the_ranks_gives_each_sample_once(tmp_path, world, workers, lines):
    (tmp_path / "lines.jsonl").write_text("".join(f"{n}\n" for n in range(lines)))
    found = Ranks(partial(Online, str(tmp_path), 2), world, epochs=2, seed=1, workers=workers).batches()
    assert {epoch: sorted(samples) for epoch, samples in by_epoch(found).items()} == {
        0: list(range(lines)),
        1: list(range(lines)),
    }


@pytest.mark.parametrize("read", [None, read_lines])
def test_a_stream_with_fewer_samples_than_ranks_is_refused(tmp_path, read):
    (tmp_path / "lines.jsonl").write_text("1\n2\n")
    data = Online(str(tmp_path / "*.jsonl"), 2, read=read, rank=2, world=3)
    with pytest.raises(UsageError, match="2 samples for 3 workers"):
        next(iter(data))


@pytest.mark.parametrize("read", [None, read_lines])
def test_a_stream_without_samples_is_refused(tmp_path, read):
    (tmp_path / "lines.jsonl").write_text("")
    data = Online(str(tmp_path / "*.jsonl"), 2, read=read)
    with pytest.raises(UsageError, match="no samples"):
        next(iter(data))


def test_batches_are_large_where_samples_are_short():
    lengths = [5] * 40 + [50] * 10
    data = Variable(lengths, {"<=10": 20, "<=64": 5}, length=lambda n: n, epochs=1, rank=0, world=1)
    shapes = sorted((int(batch.max()), len(batch)) for _, batch in data)
    assert shapes == [(5, 20), (5, 20), (50, 5), (50, 5)]


def test_what_is_left_of_all_lengths_shares_batches_that_the_longest_allows():
    lengths = [5] * 7 + [50] * 3
    batches = [b.tolist() for _, b in Variable(lengths, {10: 20, 64: 4}, length=lambda n: n, epochs=1, rank=0, world=1)]
    assert sorted(map(len, batches)) == [3, 7]
    assert all(len(b) <= 4 for b in batches if 50 in b)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Small([], 2), "no samples"),
        (lambda: Small([1, 2], 2, rank=0, world=3), "2 samples for 3 workers"),
        (lambda: Small([1, 2], 0), "batch_size"),
        (lambda: Small([1, 2], 1, epoch=3), "epoch"),
        (lambda: Small([1, 2], 1, epochs=0), "epochs"),
        (lambda: Small([1, 2], 1, rank=2, world=2), "rank 2"),
        (lambda: Small([1, 2], 1, rank=0), "both"),
        (lambda: Small("nowhere/*.pkl", 1), "nowhere"),
        (lambda: Variable([1, 2], {}, length=int), "batch_size"),
        (lambda: Variable([1, 2], {"short": 3}, length=int), "short"),
        (lambda: Variable([1, 200], {"<=30": 3}, length=int), "1 of 2 samples are longer than 30"),
        (lambda: Variable([1, 2], {"<=30": 3}, length=[1]), "1 lengths for 2"),
    ],
)
def test_what_cannot_work_is_said_at_once(make, word):
    with pytest.raises(UsageError) as caught:
        make()
    assert word in caught.value.message


def test_a_misspelt_setting_gets_its_nearest_name():
    with pytest.raises(UsageError) as caught:
        Small([1], 1, shufle=True)
    assert "shuffle" in str(caught.value.hint)


def test_samples_longer_than_all_buckets_can_be_left_out():
    data = Variable([1, 200, 3], {"<=30": 3}, length=int, drop_longer=True, epochs=1, rank=0, world=1)
    assert data.samples == 2
    assert sorted(flat([(e, [b.tolist()]) for e, b in data])) == [1, 3]


def test_a_state_of_other_data_is_refused():
    state = Small([1, 2, 3], 1, rank=0, world=1).state_dict()
    with pytest.raises(UsageError, match="3 samples"):
        Small([1, 2], 1, rank=0, world=1).load_state_dict(state)
    with pytest.raises(UsageError, match="Small"):
        Variable([1, 2, 3], {9: 1}, length=int, rank=0, world=1).load_state_dict(state)
