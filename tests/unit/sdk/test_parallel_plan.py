"""parallel= and mesh= read into sizes."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidSpec
from shoal.sdk.parallel.plan import Plan, read_plan


def test_auto_is_ddp_over_the_whole_world() -> None:
    assert read_plan("auto", None, 4) == Plan(replicas=4)


def test_a_way_without_a_mesh_takes_the_whole_world() -> None:
    assert read_plan("fsdp", None, 4) == Plan(shards=4)
    assert read_plan("pipeline", None, 4) == Plan(stages=4, num_microbatches=4)


def test_none_is_plain_in_any_world() -> None:
    assert read_plan("none", None, 4).is_plain


@pytest.mark.parametrize("parallel", ["auto", "ddp", "fsdp", "pipeline", "none"])
def test_one_process_is_always_plain(parallel: str) -> None:
    assert read_plan(parallel, None, 1).is_plain


def test_a_script_with_a_mesh_still_runs_alone() -> None:
    assert read_plan("auto", {"ddp": 2, "pipeline": 2}, 1).is_plain


def test_a_mesh_combines_ddp_with_one_other() -> None:
    assert read_plan("auto", {"ddp": 2, "fsdp": 3}, 6) == Plan(replicas=2, shards=3)
    assert read_plan("pipeline", {"ddp": 2, "pipeline": 2}, 4) == Plan(replicas=2, stages=2, num_microbatches=2)


def test_shards_and_parts_of_sequences_and_matrices_combine() -> None:
    plan = read_plan("auto", {"ddp": 2, "fsdp": 2, "cp": 3, "tp": 4}, 48)
    assert plan == Plan(replicas=2, shards=2, sequence=3, tensor=4)
    assert plan.together == 12
    assert read_plan("auto", {"tp": 2}, 2) == Plan(tensor=2)
    assert not read_plan("auto", {"cp": 2}, 2).is_plain


def test_pp_is_another_name_of_the_pipeline() -> None:
    assert read_plan("auto", {"ddp": 2, "pp": 2}, 4) == read_plan("auto", {"ddp": 2, "pipeline": 2}, 4)


def test_the_number_of_micro_batches_can_be_set_without_naming_sizes() -> None:
    assert read_plan("pipeline", {"num_microbatches": 8}, 2) == Plan(stages=2, num_microbatches=8)


@pytest.mark.parametrize(
    ("parallel", "mesh", "world"),
    [
        ("tensor", None, 2),
        ("auto", {"ddp": 2, "fsdp": 2}, 2),
        ("auto", {"ddp": 2, "tensor": 2}, 4),
        ("auto", {"fsdp": 2, "pipeline": 2}, 4),
        ("auto", {"tp": 2, "pipeline": 2}, 4),
        ("auto", {"cp": 2, "pp": 2}, 4),
        ("auto", {"pp": 2, "pipeline": 2}, 4),
        ("auto", {"ep": 2}, 2),
        ("auto", {"ddp": 0}, 2),
        ("auto", {"ddp": True}, 2),
        ("fsdp", {"ddp": 2, "pipeline": 2}, 4),
        ("none", {"ddp": 2}, 2),
    ],
)
def test_what_cannot_be_is_refused(parallel: str, mesh: dict[str, int] | None, world: int) -> None:
    with pytest.raises(InvalidSpec):
        read_plan(parallel, mesh, world)


def test_the_refusal_says_how_many_processes_are_needed() -> None:
    with pytest.raises(InvalidSpec, match=r"needs 4 processes, but the world has 3"):
        read_plan("auto", {"ddp": 2, "fsdp": 2}, 3)
