"""The parts of the pipeline that need no second process: nests, micro-batches, joining, the fingerprint."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shoal.core.errors import UsageError  # noqa: E402
from shoal.sdk.parallel.digest import digest  # noqa: E402
from shoal.sdk.parallel.pipeline.batch import Joint, Pieces  # noqa: E402
from shoal.sdk.parallel.pipeline.tree import flatten, outline, portable, put_together  # noqa: E402

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    loss: Any
    logits: Any = None
    cache: Any = None


@pytest.mark.parametrize(
    "nest",
    [
        torch.ones(2),
        (torch.ones(2), [torch.zeros(3), 4], {"a": torch.ones(1), "b": None}),
        Pair(torch.ones(1), "text"),
        OrderedDict(x=torch.ones(2)),
        Output(loss=torch.ones(()), logits=(torch.ones(2), torch.ones(3))),
        "no tensor",
    ],
    ids=lambda nest: type(nest).__name__,
)
def test_a_nest_comes_back_as_it_was(nest: Any) -> None:
    tensors: list[torch.Tensor] = []
    shape = pickle.loads(pickle.dumps(flatten(nest, tensors)))
    again = put_together(shape, tensors)
    assert type(again) is type(nest)
    found: list[torch.Tensor] = []
    assert flatten(again, found) == flatten(nest, [])
    assert all(a is b for a, b in zip(found, tensors, strict=True))


def test_what_means_nothing_elsewhere_is_left_out() -> None:
    shape = portable(flatten(Output(loss=torch.ones(()), cache=object()), []))
    assert put_together(shape, ["loss"]) == Output(loss="loss", cache=None)


def test_an_outline_is_the_same_in_every_process() -> None:
    assert outline(flatten({"a": object()}, [])) == outline(flatten({"a": object()}, []))


def test_a_batch_is_cut_into_nearly_equal_pieces() -> None:
    ids, mask, places = torch.arange(14).view(7, 2), torch.ones(7, 2), torch.arange(2)[None]
    pieces = Pieces((ids,), {"mask": mask, "places": places, "flag": True}, 3)
    assert pieces.sizes == [3, 2, 2]
    args, kwargs = pieces.arguments(1)
    assert torch.equal(args[0], ids[3:5])
    assert kwargs["mask"].shape == (2, 2) and kwargs["places"] is places and kwargs["flag"] is True


def test_a_batch_smaller_than_the_number_of_pieces_has_fewer() -> None:
    assert Pieces((torch.ones(2, 3),), {}, 4).sizes == [1, 1]


def test_the_main_input_counts_the_rows_whatever_the_order_of_keywords() -> None:
    kwargs = {"position_ids": torch.arange(5)[None], "input_ids": torch.ones(4, 5)}
    assert Pieces((), kwargs, 2).sizes == [2, 2]


def test_losses_weigh_by_rows_or_by_labels_looked_at() -> None:
    labels = torch.tensor([[1, 2, 3], [1, 2, 3], [1, -100, -100], [1, 2, -100]])
    ids = torch.ones(4, 3)
    assert Pieces((ids,), {}, 2).weights(False) == [0.5, 0.5]
    assert Pieces((ids,), {"labels": labels}, 2).weights(False) == [6 / 9, 3 / 9]
    assert Pieces((ids,), {"labels": labels}, 2).weights(True) == [4 / 5, 1 / 5]
    assert Pieces((ids,), {"labels": labels, "num_items_in_batch": 5}, 2).weights(True) == [1.0, 1.0]
    assert Pieces((ids,), {"labels": torch.full((4, 3), -100)}, 2).weights(True) == [0.5, 0.5]


def test_outputs_are_joined_and_their_gradients_go_back_to_the_pieces() -> None:
    parts = [torch.rand(3, 2, requires_grad=True), torch.rand(2, 2, requires_grad=True)]
    losses = [part.sum() for part in parts]
    joint = Joint([Output(loss, part) for loss, part in zip(losses, parts, strict=True)], [3, 2], [0.6, 0.4])
    assert joint.tensors[0].item() == pytest.approx(0.6 * losses[0].item() + 0.4 * losses[1].item())
    assert torch.equal(joint.tensors[1], torch.cat(parts))
    gradients = [torch.tensor(10.0), torch.arange(10.0).view(5, 2)]
    loss, logits = joint.gradients(1, gradients)
    assert loss is not None and loss.item() == pytest.approx(4.0)
    assert logits is not None and torch.equal(logits, gradients[1][3:])
    assert joint.gradients(0, [None, None]) == [None, None]


def test_flattened_rows_are_joined_too() -> None:
    joint = Joint([torch.zeros(6, 2), torch.ones(4, 2)], [3, 2], [0.6, 0.4])
    assert joint.tensors[0].shape == (10, 2)


def test_outputs_that_do_not_follow_the_rows_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"\['table'\]"):
        Joint([{"table": torch.zeros(7)}, {"table": torch.zeros(7)}], [3, 2], [0.6, 0.4])


def test_a_fingerprint_depends_on_bytes_shape_and_type() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    assert digest([tensor]) == digest([tensor.clone()]) == digest([tensor.t().contiguous().t()])
    others = [tensor.view(3, 2), tensor + 1, tensor.to(torch.bfloat16), tensor.t(), torch.zeros(0)]
    assert len({digest([other]) for other in [tensor, *others]}) == 6
