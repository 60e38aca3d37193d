"""Training data loaded by processes of its own: the same batches, and what was fetched ahead is not lost."""

from __future__ import annotations

import itertools
import json
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from shoal.train.data import Online, Records, Small, Variable, write_records  # noqa: E402

SIZE = 40


def drawn(sample):
    return int(sample), float(torch.rand(()))


def as_list(samples):
    return samples


def read_lines(path):
    yield from path.read_text().split()


@pytest.fixture(scope="module")
def makers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_records(folder / "a.bin", range(SIZE), encode=lambda n: str(n).encode())
    (folder / "stream").mkdir()
    for part in range(2):
        numbers = range(part * SIZE // 2, (part + 1) * SIZE // 2)
        (folder / f"{part}.words").write_text(" ".join(map(str, numbers)))
        (folder / "stream" / f"{part}.jsonl").write_text("".join(json.dumps(n) + "\n" for n in numbers))
    return {
        "small": partial(Small, list(range(SIZE)), 3, decode=drawn),
        "records": partial(Records, folder / "a.bin", 3, decode=drawn),
        "variable": partial(Variable, list(range(SIZE)), {20: 4, 50: 2}, length=range(SIZE), decode=drawn),
        "read": partial(Online, str(folder / "*.words"), 3, read=read_lines, decode=drawn),
        "stream": partial(Online, str(folder / "stream"), 3),
    }


@pytest.mark.parametrize("kind", ["small", "records", "variable", "read", "stream"])
def test_workers_change_nothing_and_lose_nothing(makers, kind):
    make = partial(makers[kind], epochs=2, seed=4, rank=1, world=2, collate=as_list)
    alone = list(make())
    assert {epoch for epoch, _ in alone} == {0, 1}
    data = make(workers=2)
    before = list(itertools.islice(data, 5))
    state = data.state_dict()
    again = make(workers=2)
    again.load_state_dict(state)
    assert before + list(again) == alone
