import numpy as np
import pytest
import torch

from shoal.sdk.values import Behind, Mean, MetricTypeError, is_waiting, merge, now, plain, plain_or_text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.int64(3), 3),
        (np.array(2.5), 2.5),
        (torch.tensor(1.5), 1.5),
        (torch.tensor(4), 4),
        (torch.tensor(2.0, requires_grad=True), 2.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    ],
)
def test_everything_that_is_one_number_is_taken(value, expected):
    got = plain("x", value)
    assert got == expected
    assert type(got) in (int, float)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (True, "not bool"),
        (np.bool_(True), "bool"),
        (torch.tensor(True), "Tensor"),
        ("0.5", "not str"),
        (None, "NoneType"),
        ([1.0], "not list"),
        ({"a": 1}, "not dict"),
        (1j, "not complex"),
        (torch.zeros(3), "3 values"),
        (torch.zeros(1), "1 values"),
        (np.zeros((2, 3)), "2x3 values"),
        (object(), "not object"),
    ],
)
def test_anything_else_is_a_type_error_that_names_key_and_type(value, says):
    with pytest.raises(TypeError) as caught:
        plain("train/loss", value)
    assert "'train/loss'" in str(caught.value)
    assert says in str(caught.value)


def test_evaluate_takes_text_too_but_not_everything():
    assert plain_or_text("x", "good") == "good"
    with pytest.raises(MetricTypeError):
        plain_or_text("x", [1])


def test_a_mapping_and_names_are_merged_and_checked():
    assert merge({"a/b": 1}, {"c": 2}) == {"a/b": 1, "c": 2}
    with pytest.raises(TypeError, match="mapping"):
        merge(0.5, {})
    with pytest.raises(TypeError, match="names must be strings"):
        merge({1: 2}, {})


def test_the_mean_is_weighted_and_each_metric_has_its_own():
    mean = Mean()
    mean.add({"loss": 1.0, "often": 4}, 0.75)
    mean.add({"loss": 3.0}, 0.25)
    assert mean.pop() == {"loss": 1.5, "often": 4.0}
    assert mean.pop() == {}


class _Event:
    def __init__(self):
        self.done, self.waited = False, False

    def query(self):
        return self.done

    def synchronize(self):
        self.done = self.waited = True


@pytest.fixture
def behind(monkeypatch):
    """The queue with a device whose copies arrive when the test says so."""
    written, events = [], []

    def copy_later(values):
        events.append(_Event())
        return values, events[-1]

    monkeypatch.setattr("shoal.sdk.values._copy_later", copy_later)
    queue = Behind(lambda step, values, at: written.append((step, values, at)))
    return queue, written, events


def test_numbers_on_a_device_are_written_when_they_arrive_and_in_order(behind):
    queue, written, events = behind
    queue.put(1, {"loss": torch.tensor(1.0)}, 10.0)
    queue.write_arrived()
    assert written == []
    queue.put(2, {"loss": torch.tensor(2.0)}, 11.0)
    events[1].done = True
    queue.write_arrived()
    assert written == [], "the second may not overtake the first"
    events[0].done = True
    queue.write_arrived()
    assert written == [(1, {"loss": 1.0}, 10.0), (2, {"loss": 2.0}, 11.0)]
    assert not any(e.waited for e in events)


def test_at_the_end_what_has_not_arrived_is_waited_for(behind):
    queue, written, events = behind
    for step in range(3):
        queue.put(step, {"loss": torch.tensor(float(step))}, 0.0)
    queue.write_arrived(everything=True)
    assert [w[0] for w in written] == [0, 1, 2]
    assert all(e.waited for e in events)
    assert not queue.queue


def test_a_device_far_behind_is_waited_for_rather_than_filling_memory(behind):
    queue, written, _ = behind
    for step in range(100):
        queue.put(step, {"loss": torch.tensor(0.0)}, 0.0)
        queue.write_arrived()
    assert len(written) == 36


def test_a_tensor_of_another_device_stays_there_until_it_is_needed():
    value = plain("x", torch.empty((), device="meta"))
    assert is_waiting(value)
    assert not is_waiting(1.0)
    assert now(2) == 2
