import pytest

from shoal.testing.parsing import signatures_read_once
from shoal.testing.slurm_programs import SlurmPrograms


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
