"""SHOAL_EMULATE_CUDA=1, a promised device, SHOAL_START_SEED and a gang of workers put a folder on PYTHONPATH; nothing else does."""

import os
from pathlib import Path

from shoal.agent.workers import runtime


def merged(user, **contract):
    return runtime.merge({"PATH": "/bin"}, {"RANK": "0", **contract}, user, {}, lambda text: text)


def test_without_the_variable_the_path_is_the_users():
    assert "PYTHONPATH" not in merged({})
    assert merged({"PYTHONPATH": "/mine", "SHOAL_EMULATE_CUDA": "0"})["PYTHONPATH"] == "/mine"


def test_with_it_a_folder_with_nothing_but_our_startup_comes_first():
    first, *rest = merged({"PYTHONPATH": "/mine:/yours", "SHOAL_EMULATE_CUDA": "1"})["PYTHONPATH"].split(os.pathsep)
    assert rest == ["/mine", "/yours"]
    assert [p.name for p in Path(first).iterdir() if p.name != "__pycache__"] == ["sitecustomize.py"]
    assert merged({"SHOAL_EMULATE_CUDA": "1"})["PYTHONPATH"] == first
    assert merged({}, USE_DDP="1")["PYTHONPATH"] == first, "those of a gang can be asked for their stacks"
    assert merged({}, SHOAL_DEVICE="cuda")["PYTHONPATH"] == first, "torch is looked at when it is imported"
    assert "PYTHONPATH" not in merged({}, SHOAL_DEVICE="cuda", SHOAL_ALLOW_CPU="1")


def test_it_can_be_taken_away_where_all_it_does_can_be_done_later():
    alone = merged({"PYTHONPATH": "/mine"}, SHOAL_DEVICE="cuda")
    assert runtime.without_startup(alone)["PYTHONPATH"] == "/mine"
    assert "PYTHONPATH" not in runtime.without_startup(merged({}, SHOAL_DEVICE="cuda"))
    assert "PYTHONPATH" not in runtime.without_startup(merged({}, SHOAL_DEVICE="cuda", USE_DDP="1"))
    for needed in (
        merged({"SHOAL_EMULATE_CUDA": "1"}, SHOAL_DEVICE="cuda"),
        merged({"SHOAL_START_SEED": "7"}, USE_DDP="1"),
    ):
        assert runtime.without_startup(needed) == needed


def test_copies_that_are_compared_begin_with_the_same_numbers_and_hashes():
    first, again, other = (merged({"SHOAL_START_SEED": "7", "RANK": rank}) for rank in "001")
    assert first["PYTHONPATH"].endswith("startup") and first["PYTHONHASHSEED"].isdigit()
    assert first["PYTHONHASHSEED"] == again["PYTHONHASHSEED"] != other["PYTHONHASHSEED"]
    assert merged({"SHOAL_START_SEED": "7", "PYTHONHASHSEED": "1"})["PYTHONHASHSEED"] == "1"
