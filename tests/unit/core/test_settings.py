"""settings.toml: what is written is read back, and old names of settings still hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.errors import InvalidSpec
from shoal.core.settings import RENAMED, Layout, ServerSettings


@pytest.fixture
def layout(tmp_path):
    made = Layout(tmp_path)
    made.server_dir.mkdir(parents=True)
    return made


@pytest.mark.parametrize("text", ["plain", 'with "quotes" and \\', "two\nlines", "tab\tand ünïcode", "\x01"])
def test_any_text_survives_being_saved(layout, text):
    settings = replace(ServerSettings(), hosts=text, slots=0, sign_up=True, node_timeout_s=12.5)
    settings.save(layout)
    assert ServerSettings.stored(layout) == settings


@pytest.mark.parametrize("old", RENAMED)
def test_a_setting_is_read_under_its_old_name_and_saved_under_its_new_one(layout, old):
    layout.settings_file.write_text(f"{old} = 12.5\n")
    stored = ServerSettings.stored(layout)
    assert getattr(stored, RENAMED[old]) == 12.5
    stored.save(layout)
    assert layout.settings_file.read_text() == f"{RENAMED[old]} = 12.5\n"


def test_the_new_name_wins_over_the_old_one(layout):
    layout.settings_file.write_text("lease_s = 1.0\nnode_timeout_s = 2.0\n")
    assert ServerSettings.load(layout).node_timeout_s == 2.0


def test_an_unknown_setting_is_named(layout):
    layout.settings_file.write_text("lease = 1\n")
    with pytest.raises(InvalidSpec, match="unknown setting 'lease'"):
        ServerSettings.load(layout)
