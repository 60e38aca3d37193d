"""The private local server: found if it lives, started exactly once if not, stopped with care."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from shoal.client import local
from shoal.core.boot import boot_id
from shoal.core.errors import AuthError, Internal, MissingExtra, NotSignedIn, TimedOut, Unreachable
from shoal.core.settings import Layout

STANDIN = Path(__file__).with_name("standin_server.py")


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    made = Layout(tmp_path / "home")
    monkeypatch.delenv("SHOAL_NO_AUTOSTART", raising=False)
    monkeypatch.setattr(local, "server_command", command)
    yield made
    for mark in made.server_dir.glob("started-*"):
        pid = int(mark.name.removeprefix("started-"))
        try:
            if str(made.root) in psutil.Process(pid).cmdline():
                os.kill(pid, signal.SIGKILL)
        except (psutil.Error, ProcessLookupError):
            pass


def command(layout: Layout, *more: str) -> list[str]:
    return [sys.executable, str(STANDIN), str(layout.root), *more]


def starts(layout: Layout) -> int:
    return len(list(layout.server_dir.glob("started-*")))


def test_the_first_command_starts_it_and_the_next_ones_find_it(layout: Layout) -> None:
    said: list[str] = []
    url, key = local.ensure_local_server(layout, say=said.append)
    assert key == "owner-key"
    assert said == [f"Started a private Shoal server at {url} (stop it with `shoal server stop`)"]
    assert local.ensure_local_server(layout, say=said.append) == (url, key)
    assert (starts(layout), len(said)) == (1, 1)
    assert stat.S_IMODE(layout.server_log.stat().st_mode) == 0o600
    assert os.getsid(local.read_record(layout).pid) != os.getsid(0)  # type: ignore[union-attr]


def test_of_many_commands_at_once_exactly_one_starts_it(layout: Layout) -> None:
    slow = command(layout, "--slow", "0.3")
    with ThreadPoolExecutor(8) as pool:
        started = list(pool.map(lambda _: local.start_server(layout, command=slow), range(8)))
    assert starts(layout) == 1
    assert sum(s.is_new for s in started) == 1
    assert len({s.record for s in started}) == 1


def test_a_server_killed_without_a_word_is_replaced(layout: Layout) -> None:
    first = local.start_server(layout, command=command(layout)).record
    os.kill(first.pid, signal.SIGKILL)
    local._wait_until(lambda: not local.is_alive(first), 10)
    assert layout.server_file.exists()
    second = local.start_server(layout, command=command(layout))
    assert second.is_new
    assert second.record.pid != first.pid


def test_a_file_from_before_a_reboot_is_stale(layout: Layout) -> None:
    me = psutil.Process()
    record = local.ServerRecord(me.pid, "http://127.0.0.1:9", boot_id(), me.create_time())
    assert local.is_alive(record)
    assert not local.is_alive(local.ServerRecord(me.pid, record.url, "another-boot", me.create_time()))


def test_a_reused_pid_is_not_the_server(layout: Layout) -> None:
    me = psutil.Process()
    assert not local.is_alive(local.ServerRecord(me.pid, "http://127.0.0.1:9", boot_id(), me.create_time() - 60))
    assert not local.is_alive(local.ServerRecord(2**22 - 1, "http://127.0.0.1:9", boot_id(), 0.0))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "url": "u", "create_time": 1}'])
def test_a_broken_file_counts_as_none(layout: Layout, content: str) -> None:
    layout.server_dir.mkdir(parents=True)
    layout.server_file.write_text(content)
    assert local.running_server(layout) is None


def test_stop_ends_the_process_and_waits_for_it(layout: Layout) -> None:
    record = local.start_server(layout, command=command(layout)).record
    assert local.stop_server(layout) == record
    assert not local.is_alive(record)
    assert local.stop_server(layout) is None


def test_stop_does_not_touch_a_stranger_with_the_same_pid(layout: Layout) -> None:
    layout.server_dir.mkdir(parents=True)
    me = psutil.Process()
    stale = {"pid": me.pid, "url": "http://127.0.0.1:9", "boot_id": boot_id(), "create_time": me.create_time() - 100}
    layout.server_file.write_text(json.dumps(stale))
    assert local.stop_server(layout) is None


def test_a_server_that_cannot_start_shows_the_end_of_its_log(layout: Layout) -> None:
    with pytest.raises(Internal, match=r"exit code 3.*\n  the disk is on fire"):
        local.start_server(layout, command=command(layout, "--fail", "the disk is on fire"))


def test_a_server_that_never_answers_is_given_up_and_ended(layout: Layout) -> None:
    with pytest.raises(TimedOut, match="did not come up"):
        local.start_server(layout, command=command(layout, "--slow", "60"), timeout_s=0.3)

    def is_gone() -> bool:
        children = psutil.Process().children()
        return not any(c.status() != psutil.STATUS_ZOMBIE and str(layout.root) in c.cmdline() for c in children)

    assert local._wait_until(is_gone, 10)


def test_autostart_can_be_forbidden(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_NO_AUTOSTART", "1")
    with pytest.raises(Unreachable, match="SHOAL_NO_AUTOSTART"):
        local.ensure_local_server(layout)
    assert not layout.root.exists()


def test_a_missing_extra_is_explained_with_the_pip_command(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SERVER_MODULES", ("json", "no_such_module"))
    with pytest.raises(MissingExtra, match="no_such_module") as caught:
        local.start_server(layout)
    assert "pip install 'shoal[server]'" in (caught.value.hint or "")


def test_a_key_others_can_read_is_refused(layout: Layout) -> None:
    layout.server_dir.mkdir(parents=True)
    layout.owner_key.write_text("k")
    layout.owner_key.chmod(0o640)
    record = local.ServerRecord(1, "http://127.0.0.1:9", boot_id(), 0.0)
    with pytest.raises(AuthError, match="read by others"):
        local.owner_key(layout, record)
    layout.owner_key.chmod(0o600)
    assert local.owner_key(layout, record) == "k"
    with pytest.raises(NotSignedIn, match="open to the network"):
        local.owner_key(layout, replace(record, private=False))
    layout.owner_key.unlink()
    with pytest.raises(NotSignedIn, match="missing"):
        local.owner_key(layout, record)


def test_the_server_does_not_inherit_what_is_meant_for_clients(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_API_KEY", "k")
    monkeypatch.setenv("SHOAL_URL", "http://elsewhere")
    found = local.server_environment(layout)
    assert "SHOAL_API_KEY" not in found
    assert "SHOAL_URL" not in found
    assert found["SHOAL_HOME"] == str(layout.root)
