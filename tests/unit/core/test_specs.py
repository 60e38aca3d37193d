import pytest
from pydantic import ValidationError

from shoal.core.errors import InvalidName, InvalidSpec
from shoal.core.jobs import JobSpec
from shoal.core.settings import Layout, ServerSettings
from shoal.core.swarm import SwarmTerms


def spec(**changes):
    return JobSpec(**{"name": "a", "entry": ["train.py"], "source_id": "src_1", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"min_nodes": 0},
        {"min_nodes": 3, "max_nodes": 2},
        {"accels": 0},
        {"entry": []},
        {"name": "a b"},
        {"env": {"1X": "y"}},
        {"env": {"RANK": "0"}},
        {"env": {"A": "b\0c"}},
        {"time_limit_s": 0},
        {"max_restarts": -1},
        {"unknown": 1},
    ],
)
def test_a_spec_with_a_bad_field_is_refused(changes):
    with pytest.raises((ValidationError, InvalidName)):
        spec(**changes)


def test_a_gang_needs_slots_for_its_smallest_size():
    assert spec(min_nodes=2, max_nodes=4, accels=3).min_slots == 6


def test_settings_come_from_the_file_then_the_environment_then_the_command_line(tmp_path, monkeypatch):
    layout = Layout(tmp_path)
    ServerSettings(slots=3, port=8000).save(layout)
    assert ServerSettings.load(layout).slots == 3
    monkeypatch.setenv("SHOAL_SLOTS", "5")
    assert ServerSettings.load(layout).slots == 5
    assert ServerSettings.load(layout, slots=7, host=None).slots == 7
    assert ServerSettings.load(layout).port == 8000


def test_no_slots_is_a_setting_of_its_own_and_the_zero_of_before_still_means_detect(tmp_path, monkeypatch):
    layout = Layout(tmp_path)
    assert ServerSettings.load(layout).slots is None
    ServerSettings.load(layout, slots=0).save(layout)
    assert 'slots = "none"' in layout.settings_file.read_text()
    assert ServerSettings.load(layout).slots == ServerSettings.stored(layout).slots == 0
    ServerSettings.load(layout, slots="auto").save(layout)
    assert "slots" not in layout.settings_file.read_text() and ServerSettings.load(layout).slots is None
    layout.settings_file.write_text("slots = 0\n")  # by hand, for 0.1
    assert ServerSettings.load(layout).slots is None
    for text, slots in {"0": None, "auto": None, "none": 0, "3": 3}.items():
        monkeypatch.setenv("SHOAL_SLOTS", text)
        assert ServerSettings.load(layout).slots == slots


@pytest.mark.parametrize("text", ["-1", "many", "1.5"])
def test_a_number_of_slots_that_is_none_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv("SHOAL_SLOTS", text)
    with pytest.raises(InvalidSpec, match="SHOAL_SLOTS"):
        ServerSettings.load(Layout(tmp_path))


def test_an_unknown_setting_is_named(tmp_path):
    layout = Layout(tmp_path)
    layout.server_dir.mkdir()
    layout.settings_file.write_text("slotz = 3\n")
    with pytest.raises(InvalidSpec, match="slotz"):
        ServerSettings.load(layout)


def test_a_swarm_open_to_strangers_aggregates_robustly_unless_told_otherwise():
    def aggregation(**terms):
        return SwarmTerms(target_batch_size=8, **terms).aggregation

    assert [aggregation(trust=trust) for trust in ("trusted", "invited", "open")] == ["mean", "mean", "robust"]
    assert aggregation(trust="open", aggregation="mean") == "mean"
    stored = SwarmTerms(target_batch_size=8, trust="open", aggregation="mean").model_dump(mode="json")
    assert SwarmTerms.model_validate(stored).aggregation == "mean"
