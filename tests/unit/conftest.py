import os

import pytest
from hypothesis import settings

from shoal.testing.parsing import signatures_read_once
from shoal.testing.slurm_programs import SlurmPrograms

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch is imported: its other threads would only wait, and spin for it
if "SHOAL_SOAK" not in os.environ:
    settings.register_profile("unit", settings.get_profile("shoal"), max_examples=40)
    settings.load_profile("unit")


@pytest.fixture(scope="session")
def parse_fast():
    """Command lines are parsed by hundreds; see `shoal.testing.parsing`."""
    with signatures_read_once():
        yield


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Slurm's, played by scripts, and looked at often."""
    programs = SlurmPrograms(tmp_path / "slurm")
    monkeypatch.setenv("PATH", programs.path)
    monkeypatch.setattr("shoal.engines.slurm.engine.JOBS_EVERY_S", 0.02)
    return programs
