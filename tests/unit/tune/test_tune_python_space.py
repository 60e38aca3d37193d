"""Search spaces as Python gives them, for a server and for processes of this machine; and the code that goes with them."""

from __future__ import annotations

import pytest

from shoal.core.errors import UsageError
from shoal.core.sweeps import Between, Choice
from shoal.train import Params, Range
from shoal.tune.python_space import Space
from shoal.tune.remote import locate


class Tried(Params):
    lr: float = Range([1e-3, 1e-4])
    betas: tuple[float, float] = Range([(0.9, 0.99), (0.8, 0.9)])
    hidden: int = 8


def test_params_become_a_space_with_what_was_set_otherwise_than_in_the_class():
    space = Space(Tried(hidden=16)).as_json()
    assert space == {
        "lr": Choice(values=[1e-3, 1e-4]),
        "betas": Choice(values=[[0.9, 0.99], [0.8, 0.9]]),
        "hidden": Choice(values=[16]),
    }
    assert set(Space(Tried).as_json()) == {"lr", "betas"}


def test_lists_texts_ranges_and_groups_are_read():
    space = Space(
        {
            "a": [1, 2],
            "b": "1e-3:1:log",
            "c": Range([3, 4], group="g"),
            "d": 5,
            "e": Between(low=0, high=1),
            "f": range(2),
        }
    )
    assert space.as_json() == {
        "a": Choice(values=[1, 2]),
        "b": Between(low=1e-3, high=1, log=True),
        "c": Choice(values=[3, 4], group="g"),
        "d": Choice(values=[5]),
        "e": Between(low=0, high=1),
        "f": Choice(values=[0, 1]),
    }


def test_objects_are_counted_for_processes_and_refused_for_a_server():
    space = Space({"kind": [int, str], "x": "0:1"})
    assert space.by_index()["kind"] == Choice(values=[0, 1])
    assert space.values({"kind": 1, "x": 0.5}) == {"kind": str, "x": 0.5}
    with pytest.raises(UsageError, match="kind has values that cannot be sent"):
        space.as_json()


def test_a_script_is_found_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp").mkdir()
    assert locate(["exp/train.py", "-v"], None) == (tmp_path, ["exp/train.py", "-v"])
    assert locate(["train.py"], "exp") == (tmp_path / "exp", ["train.py"])
    monkeypatch.chdir(tmp_path / "exp")
    assert locate([str(tmp_path / "train.py")], None) == (tmp_path, ["train.py"])
    with pytest.raises(UsageError, match="is not in"):
        locate(["../train.py"], ".")
    with pytest.raises(UsageError, match="no script is given"):
        locate([], None)
