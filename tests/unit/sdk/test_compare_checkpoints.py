"""Comparing two checkpoints value by value."""

import copy
import json

import pytest

torch = pytest.importorskip("torch")

from shoal.sdk.compare import compare, differences, digest  # noqa: E402


@pytest.fixture
def nest():
    return {
        "weight": torch.arange(12.0).reshape(3, 4),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "count": torch.tensor(5),
        "empty": torch.empty(0),
        "list": [1, 2.0, float("nan"), "text", None, {"deep": torch.tensor([True, False])}],
    }


def test_equal_nests_have_equal_digests_and_no_differences(nest):
    other = copy.deepcopy(nest)
    assert digest(nest) == digest(other) and not list(differences(nest, other))


def change_weight(nest):
    nest["weight"][1, 2] += 0.5


def change_sign_of_zero(nest):
    nest["weight"][0, 0] = -0.0


def change_dtype(nest):
    nest["half"] = nest["half"].half()


def change_float(nest):
    nest["list"][1] = 2.5


def change_type(nest):
    nest["list"][0] = True


def remove(nest):
    del nest["count"]


def shorten(nest):
    nest["list"].pop()


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (
            change_weight,
            {"where": "weight", "index": [1, 2], "count": 1, "first": 6.0, "second": 6.5, "max_difference": 0.5},
        ),
        (change_sign_of_zero, {"where": "weight", "index": [0, 0], "max_difference": 0.0}),
        (change_dtype, {"where": "half", "what": "dtype", "second": "torch.float16"}),
        (change_float, {"where": "list[1]", "what": "value", "first": 2.0, "second": 2.5}),
        (change_type, {"where": "list[0]", "what": "value", "first": 1, "second": True}),
        (remove, {"where": "count", "what": "entry", "second": "absent"}),
        (shorten, {"where": "list", "what": "length", "first": 6, "second": 5}),
    ],
)
def test_every_kind_of_difference_is_found_and_placed(nest, change, wanted):
    other = copy.deepcopy(nest)
    change(other)
    first = next(iter(differences(nest, other)))
    assert wanted.items() <= first.items()
    assert digest(nest) != digest(other)


def checkpoint(folder, **files):
    folder.mkdir()
    for name, value in files.items():
        torch.save(value, folder / f"{name}.pt")
    about = {"step": 8, "world_size": 1, "torch": "2", "files": {f"{name}.pt": {} for name in files}}
    (folder / "shoal.json").write_text(json.dumps(about))
    return folder


def test_the_model_is_reported_before_what_follows_from_it(tmp_path, nest):
    other = copy.deepcopy(nest)
    change_weight(other)
    a = checkpoint(tmp_path / "a", training={"rng": 1}, optimizer=[nest], model=nest)
    b = checkpoint(tmp_path / "b", training={"rng": 2}, optimizer=[other], model=other)
    found = compare(a, b)
    assert not found["equal"] and [d["file"] for d in found["differences"]] == [
        "model.pt",
        "optimizer.pt",
        "training.pt",
    ]
    assert compare(a, a)["equal"]


def test_what_cannot_be_read_as_plain_values_is_compared_as_bytes(tmp_path):
    a = checkpoint(tmp_path / "a", model={"x": pytest.approx})
    assert compare(a, a)["equal"]


def test_generators_that_did_not_start_alike_are_left_out_and_named(tmp_path, nest):
    def state(python, torch_state):
        return {
            "rng": [{"python": [3, torch.tensor([python]), None], "torch": torch.tensor([torch_state])}],
            "epoch": 1,
        }

    first = checkpoint(tmp_path / "first", model=nest, training=state(1, 5))
    second = checkpoint(tmp_path / "second", model=nest, training=state(2, 5))
    third = checkpoint(tmp_path / "third", model=nest, training=state(2, 6))
    assert not compare(first, second)["equal"]
    found = compare(first, second, ["python"])
    assert found["equal"] and found["left_out"] == ["python"] and found["differences"] == []
    [difference] = compare(first, third, ["python"])["differences"]
    assert difference["where"] == "rng[0].torch"
