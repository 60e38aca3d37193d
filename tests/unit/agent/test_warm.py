"""A worker starts warm only where a new interpreter would do nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.agent.prefork.warm import why_cold
from shoal.agent.workers.runtime import STARTUP
from shoal.agent.workers.workers import Spec

ENV = {"PATH": "/bin", "HOME": "/home/me", "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1", "LANG": "C.UTF-8"}
PYTHON = sys.executable


def spec(*argv: str, rank: int | None = 0, **env: str) -> Spec:
    return Spec([PYTHON, "-u", *argv], {**ENV, **env}, rank)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nimport torch\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/small.py").write_text("import torch\n")
    return tmp_path


def test_a_plain_script_starts_warm(source: Path) -> None:
    assert why_cold([spec("train.py", "--lr", "0.1")], PYTHON, source, ENV) is None


@pytest.mark.parametrize("name", ["SHOAL_JOB_ID", "LR", "HF_HOME", "CUDA_VISIBLE_DEVICES", "TMPDIR", "KEY", "RANK",
                                  "TORCHELASTIC_RUN_ID"])  # fmt: skip
def test_variables_that_are_read_when_they_are_needed_change_nothing(source: Path, name: str) -> None:
    assert why_cold([spec("train.py", **{name: "1"})], PYTHON, source, ENV) is None


def test_several_workers_of_a_plain_script_start_warm(source: Path) -> None:
    assert why_cold([spec("train.py", rank=n, RANK=str(n)) for n in range(4)], PYTHON, source, ENV) is None
    start = {"USE_DDP": "1", "PYTHONPATH": str(STARTUP)}
    assert why_cold([spec("train.py", rank=n, **start) for n in range(4)], PYTHON, source, ENV) is None
    assert why_cold([spec("train.py", **start, SHOAL_START_SEED="7")], PYTHON, source, ENV) is not None


def test_a_promised_device_is_no_reason_for_a_cold_start(source: Path) -> None:
    promise = {"SHOAL_DEVICE": "cuda", "PYTHONPATH": str(STARTUP)}
    assert why_cold([spec("train.py", **promise)], PYTHON, source, ENV) is None
    assert why_cold([spec("train.py", **promise, SHOAL_EMULATE_CUDA="1")], PYTHON, source, ENV) is not None


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH",
        "PYTHONHASHSEED",
        "PYTHONUNBUFFERED",
        "LD_PRELOAD",
        "LC_ALL",
        "TZ",
        "HOME",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "KMP_AFFINITY",
        "MALLOC_ARENA_MAX",
        "CUDA_LAUNCH_BLOCKING",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCH_LOGS",
        "TORCHINDUCTOR_CACHE_DIR",
    ],
)
def test_variables_that_count_from_the_start_need_a_new_interpreter(source: Path, name: str) -> None:
    why = why_cold([spec("train.py", **{name: "7"})], PYTHON, source, ENV)
    assert why is not None and why.startswith(f"{name} ")
    # It is the same the other way round: what the prefork parent was started with, and the job is not to have.
    assert why_cold([spec("train.py")], PYTHON, source, {**ENV, name: "7"}) is not None
    assert why_cold([spec("train.py", **{name: "7"})], PYTHON, source, {**ENV, name: "7"}) is None


@pytest.mark.parametrize(
    "bad",
    [
        [spec("-O", "train.py")],
        [spec("-m", "train")],
        [spec("-c", "print(1).py")],
        [spec("train.sh")],
        [spec("gone.py")],
        [spec("train.py", rank=None)],
        [spec("train.py")._replace(group=True)],
        [Spec(["torchrun", "train.py"], ENV, 0)],
        [Spec(["/another/python", "-u", "train.py"], ENV, 0)],
        [spec("train.py"), spec("train.py", rank=1, OMP_NUM_THREADS="7")],
        [spec("train.py"), spec("-m", "train", rank=1)],
        [spec("train.py", rank=rank) for rank in range(65)],
    ],
)
def test_anything_but_plain_scripts_starts_cold(source: Path, bad: list[Spec]) -> None:
    assert why_cold(bad, PYTHON, source, ENV) is not None


def test_another_interpreter_than_the_one_that_is_warm_starts_cold(source: Path) -> None:
    other = Spec(["/venv/bin/python", "-u", "train.py"], ENV, 0)
    assert why_cold([other], "/venv/bin/python", source, ENV) == "another interpreter"


@pytest.mark.parametrize("module", ["pytest.py", "json/__init__.py", "os.pyc", "shoal/nothing.txt"])
def test_a_file_of_the_job_in_the_place_of_a_loaded_module_starts_cold(source: Path, module: str) -> None:
    path = source / module
    path.parent.mkdir(exist_ok=True)
    path.touch()
    why = why_cold([spec("train.py")], PYTHON, source, ENV)
    assert why == f"{Path(module).parts[0].partition('.')[0]} is shadowed by a module of the job"


def test_only_the_folder_of_the_script_is_looked_for_such_modules(source: Path) -> None:
    (source / "models/json.py").touch()
    assert why_cold([spec("train.py")], PYTHON, source, ENV) is None
    assert why_cold([spec("models/small.py")], PYTHON, source, ENV) is not None


@pytest.mark.parametrize("line", ["os.environ['OMP_NUM_THREADS'] = '4'", "os.putenv('TORCH_LOGS', '+dynamo')"])
def test_a_source_that_sets_what_counts_from_the_import_starts_cold(source: Path, line: str) -> None:
    (source / "models/small.py").write_text(f"import os\n{line}\nimport torch\n")
    why = why_cold([spec("train.py")], PYTHON, source, ENV)
    assert why is not None and why.startswith("small.py mentions ")


def test_a_large_source_is_not_searched_and_starts_cold(source: Path) -> None:
    (source / "models/large.py").write_bytes(b"#" * (5 << 20))
    assert why_cold([spec("train.py")], PYTHON, source, ENV) == "a large source"


def test_a_source_without_torch_has_nothing_to_gain(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import json\n")
    assert why_cold([spec("train.py")], PYTHON, tmp_path, ENV) == "it does not use torch"
    (tmp_path / "model.py").write_text("from transformers import Trainer\n")
    assert why_cold([spec("train.py")], PYTHON, tmp_path, ENV) is None
