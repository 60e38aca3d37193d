"""The command lines that `launch-command` prints for a job."""

from pathlib import Path

import pytest

from shoal.cli.launch_command.commands import Places, Wanted, by_hand
from shoal.core.jobs import JobSpec


class Job:
    """The part of a job's view that is read."""

    id, name, nodes = "job_1", "story", 1

    def __init__(self, **spec: object):
        self.spec = JobSpec.model_validate(
            {"name": "story", "source_id": "src_1", "entry": ["train.py", "--lr", "1"], **spec}
        )
        self.accels = self.spec.accels


def words(source: Path, **spec: object) -> list[str]:
    wanted = Wanted(Job(**spec), [], "cpu", "127.0.0.1", 29500)  # type: ignore[arg-type]
    [node] = by_hand(wanted, Places(Path("/here")), source)
    return node.argv


def test_one_worker_is_started_by_python_and_several_by_torchrun(tmp_path):
    (tmp_path / "train.py").write_text("import torch")
    assert words(tmp_path) == ["python", "-u", "train.py", "--lr", "1"]
    assert words(tmp_path, accels=2)[0] == "torchrun"


@pytest.mark.parametrize("spec", [{"launcher": "torchrun"}, {"min_nodes": 1, "max_nodes": 4}])
def test_one_worker_of_a_job_that_asks_for_ranks_is_started_by_torchrun(tmp_path, spec):
    (tmp_path / "train.py").write_text("import torch")
    assert words(tmp_path, **spec)[0] == "torchrun"
