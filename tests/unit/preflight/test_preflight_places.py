"""Where a preflight says that something was found."""

from shoal.preflight.trial import Asked, Trial


def test_a_finding_points_to_a_file_of_the_job_and_never_to_the_interpreter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trial = Trial(Asked(report="report.json"))
    assert trial.own(str(tmp_path / "train.py")) == "train.py"
    assert trial.own("<frozen importlib._bootstrap>") is None
