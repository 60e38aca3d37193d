"""Places in the code that a preflight reports."""

from shoal.preflight.probe import Probe, ProbeSettings


def test_a_finding_points_to_a_file_of_the_job_and_never_to_the_interpreter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    probe = Probe(ProbeSettings(report="report.json"))
    assert probe.own(str(tmp_path / "train.py")) == "train.py"
    assert probe.own("<frozen importlib._bootstrap>") is None
