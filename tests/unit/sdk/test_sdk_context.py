import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.core.errors import UsageError
from shoal.sdk.context import read_context
from shoal.sdk.options import Options


def test_a_plain_script_gets_a_directory_name_and_nothing_on_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = read_context("my run!", None, {})
    assert context.dir.parent == tmp_path / "shoal-runs"
    assert context.dir.name.startswith("my-run-20")
    assert (context.spool_dir, context.output_dir) == (context.dir / "spool", context.dir / "checkpoints")
    assert list(tmp_path.iterdir()) == []
    assert (context.rank, context.world_size, context.is_main, context.on_platform) == (0, 1, True, False)


def test_two_plain_runs_in_the_same_second_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_context("a", None, {}).dir != read_context("a", None, {}).dir


def test_run_json_says_what_this_is(tmp_path):
    context = read_context("a", tmp_path / "x", {})
    context.make_dirs()
    context.make_dirs()
    about = json.loads((tmp_path / "x" / "run.json").read_text())
    assert set(about) == {"id", "name", "created", "argv", "world_size", "shoal"}
    assert about["name"] == "a"


def test_on_the_platform_the_environment_decides(tmp_path):
    env = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "SHOAL_JOB_ID": "job_1",
        "SHOAL_JOB_NAME": "theirs",
        "SHOAL_ATTEMPT": "2",
        "SHOAL_SPOOL": str(tmp_path / "spool"),
        "OUTPUT_DIR": str(tmp_path / "out"),
        "SHOAL_RESUME_FROM": str(tmp_path / "in"),
    }
    context = read_context("mine", tmp_path / "elsewhere", env)
    assert (context.name, context.rank, context.local_rank, context.world_size) == ("theirs", 3, 1, 4)
    assert (context.node, context.master_addr, context.master_port) == (1, "10.0.0.1", 29500)
    assert (context.job_id, context.attempt, context.on_platform) == ("job_1", 2, True)
    assert (context.dir, context.output_dir) == (tmp_path, tmp_path / "out")
    assert context.resume_from == tmp_path / "in"


def test_an_output_dir_that_is_not_the_platforms_is_left_alone(tmp_path):
    context = read_context("a", tmp_path / "run", {"OUTPUT_DIR": str(tmp_path / "theirs")})
    assert context.output_dir == tmp_path / "run" / "checkpoints"


def test_workers_of_one_launcher_find_one_directory_without_talking(tmp_path):
    code = "from shoal.sdk.context import read_context; print(read_context('a').dir)"
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_PORT": "1234"}
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**env, "RANK": rank},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for rank in "01"
    }
    assert len(found) == 1
    assert Path(found.pop().strip()).parent == tmp_path / "shoal-runs"


@pytest.mark.parametrize("env", [{"RANK": "x"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "-1"}])
def test_an_environment_that_makes_no_sense_is_refused(env):
    with pytest.raises(UsageError):
        read_context("a", None, env)


@pytest.mark.parametrize(
    "options",
    [
        {"parallel": "dpp"},
        {"max_steps": 0},
        {"max_steps": 1.5},
        {"accumulate": True},
        {"checkpoint_every": -1},
        {"checkpoint_every_s": 0},
        {"keep_checkpoints": 0},
        {"seed": -1},
        {"trackers": "wandb"},
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        Options(**options)
