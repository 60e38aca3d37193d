"""Feature files are looked through before a run."""

from __future__ import annotations

import json
import pickle

import pytest

torch = pytest.importorskip("torch")

from shoal.core.errors import UsageError  # noqa: E402
from shoal.train.data import check_files, write_records  # noqa: E402
from shoal.train.data.check import difference, records  # noqa: E402


def test_files_that_are_well_are_counted(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([(torch.zeros(3), 1), (torch.zeros(5), 0)]))
    (tmp_path / "b.pkl").write_bytes(pickle.dumps([(torch.zeros(1), 2.5)]))
    facts = check_files(tmp_path)
    assert [(f.path.name, f.samples) for f in facts] == [("a.pkl", 2), ("b.pkl", 1)]
    assert facts[0].size == (tmp_path / "a.pkl").stat().st_size


def test_all_problems_are_told_at_once(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a", "label": 1}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    (tmp_path / "c.jsonl").write_text('{"text": "a", "label": 1}\n{"text": ')
    (tmp_path / "d.jsonl").write_text("")
    (tmp_path / "e.jsonl").write_text(json.dumps({"text": 5, "label": 1}) + "\n")
    (tmp_path / "f.pkl").write_bytes(pickle.dumps([1, 2])[:-4])
    with pytest.raises(UsageError) as caught:
        check_files(tmp_path, tmp_path / "missing.jsonl")
    said = caught.value.message
    for words in (
        "there is no file",
        "b.jsonl, sample 0: it has the keys text, not label, text",
        "c.jsonl, line 2 is not JSON",
        "d.jsonl has no samples",
        "e.jsonl, sample 0: it['text'] is a number, not text",
        "f.pkl is not a valid .pkl file",
    ):
        assert words in said


def test_a_check_of_the_users_own_names_the_sample(tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n2\n-3\n")
    with pytest.raises(UsageError, match=r"a\.jsonl, sample 2"):
        check_files(tmp_path / "a.jsonl", check=lambda n: n > 0)
    with pytest.raises(UsageError, match=r"a\.jsonl, sample 0: ZeroDivisionError"):
        check_files(tmp_path / "a.jsonl", check=lambda n: n / 0)
    assert check_files(tmp_path / "a.jsonl", check=lambda n: n > 0, limit=2)[0].samples == 2


def test_records_are_checked_decoded(tmp_path):
    write_records(tmp_path / "a.bin", [b"1", b"2", b"x"])
    with pytest.raises(UsageError, match=r"a\.bin, sample 2: ValueError"):
        check_files(tmp_path / "a.bin", read=records(int))


def test_an_unknown_ending_asks_how_to_read_it(tmp_path):
    (tmp_path / "a.foo").write_text("x")
    with pytest.raises(UsageError, match=r"a\.foo"):
        check_files(tmp_path / "a.foo")


@pytest.mark.parametrize(
    ("sample", "usual", "said"),
    [
        ((1, 2), (1, 2, 3), "it has 2 parts, not 3"),
        ({"x": (1, "a")}, {"x": (1, 2)}, "it['x'][1] is text, not a number"),
        (torch.zeros(2), torch.zeros(2, 2), "it is float32 with 1 dimensions, not float32 with 2 dimensions"),
        (torch.zeros(2), torch.zeros(2).long(), "it is float32 with 1 dimensions, not int64 with 1 dimensions"),
        (True, 1, "it is bool, not a number"),
        (None, 1, None),
        ([], [1], None),
        (torch.zeros(2), torch.zeros(7), None),
    ],
)
def test_where_samples_differ(sample, usual, said):
    assert difference(sample, usual) == said
