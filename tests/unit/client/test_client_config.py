"""Choice of server, key and workspace: options before environment before the file; a key never goes to another server."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from shoal.client.config import ClientConfig, Target, check_url, find_target, is_loopback
from shoal.core.errors import InvalidSpec
from shoal.core.settings import Layout

A, B = "https://a.example", "https://b.example"


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    for name in ("SHOAL_URL", "SHOAL_API_KEY", "SHOAL_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    return Layout(tmp_path / "home")


def test_with_nothing_configured_it_is_the_private_server(layout: Layout) -> None:
    assert find_target(layout) == Target(None, None, "default")


def test_the_file_is_used_whole(layout: Layout) -> None:
    ClientConfig(url=A, key="ka", workspace="vision").save(layout)
    assert find_target(layout) == Target(A, "ka", "vision")


def test_the_environment_goes_before_the_file_and_flags_before_both(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    ClientConfig(url=A, key="ka", workspace="vision").save(layout)
    monkeypatch.setenv("SHOAL_URL", B)
    monkeypatch.setenv("SHOAL_API_KEY", "kb")
    monkeypatch.setenv("SHOAL_WORKSPACE", "audio")
    assert find_target(layout) == Target(B, "kb", "audio")
    assert find_target(layout, url=A + "/", workspace="text") == Target(A, "kb", "text")


def test_the_key_of_one_server_is_never_used_for_another(layout: Layout) -> None:
    ClientConfig(url=A, key="ka", workspace="vision").save(layout)
    assert find_target(layout, url=B) == Target(B, None, "default")


def test_a_workspace_can_be_chosen_for_the_private_server(layout: Layout) -> None:
    ClientConfig(workspace="vision").save(layout)
    assert find_target(layout) == Target(None, None, "vision")


def test_the_file_is_readable_by_its_owner_only(layout: Layout) -> None:
    ClientConfig(url=A, key="ka").save(layout)
    layout.client_config.chmod(0o644)
    ClientConfig(url=A, key="kb").save(layout)
    assert stat.S_IMODE(layout.client_config.stat().st_mode) == 0o600
    assert json.loads(layout.client_config.read_text()) == {"url": A, "key": "kb"}
    assert [p.name for p in layout.root.iterdir()] == ["client.json"]


@pytest.mark.parametrize("content", ["{", "\x00"])
def test_a_broken_file_is_named(layout: Layout, content: str) -> None:
    layout.root.mkdir()
    layout.client_config.write_text(content)
    with pytest.raises(InvalidSpec, match=r"client\.json"):
        find_target(layout)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("https://host/shoal/api/v1", "https://host/shoal"),
        (" http://[::1]:80 ", "http://[::1]:80"),
    ],
)
def test_addresses_are_brought_into_one_form(given: str, wanted: str) -> None:
    assert check_url(given) == wanted


@pytest.mark.parametrize(
    "given", ["localhost:8080", "ftp://x", "http://", "http://u:p@host", "http://h:99999", "", "http://[::1"]
)
def test_what_is_not_an_address_is_refused(given: str) -> None:
    with pytest.raises(InvalidSpec):
        check_url(given)


def test_loopback_is_told_from_the_rest() -> None:
    assert all(map(is_loopback, ["http://127.0.0.1:1", "http://localhost", "http://[::1]:1", "http://127.9.9.9"]))
    assert not any(map(is_loopback, ["http://10.0.0.1", "https://localhost.example", "http://0.0.0.0:1"]))
