"""The private local server: found if it lives, started exactly once if not, stopped with care."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from shoal.client import local, patience, server_record
from shoal.core.boot import boot_id
from shoal.core.errors import AuthError, Internal, MissingExtra, NotSignedIn, Refused, TimedOut, Unreachable
from shoal.core.instance import instance_id
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


def test_stop_does_not_claim_that_none_runs_where_it_cannot_see_the_one_that_does(layout: Layout) -> None:
    layout.server_dir.mkdir(parents=True)
    with layout.server_lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another container"):
            local.stop_server(layout)
    assert local.stop_server(layout) is None


def test_a_server_that_cannot_start_shows_the_end_of_its_log(layout: Layout) -> None:
    with pytest.raises(Internal, match=r"exit code 3.*\n  the disk is on fire"):
        local.start_server(layout, command=command(layout, "--fail", "the disk is on fire"))


def test_what_the_server_refuses_is_shown_as_its_own_words(layout: Layout) -> None:
    said = "error: secret.key is missing.\nRestore it from a backup."
    with pytest.raises(Refused, match=r"^secret\.key is missing") as caught:
        local.start_server(layout, command=command(layout, "--fail", said, "--code", "4"))
    assert caught.value.hint == "Restore it from a backup."


def test_a_server_that_is_slow_to_start_is_waited_for_and_told_of(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FIRST_WORD_S", 0.0)
    monkeypatch.setattr(patience, "NEXT_PHASE_S", 0.0)
    gate, said = layout.root / "gate", list[str]()

    def say(text: str) -> None:
        said.append(text)
        if "migrating" in text:
            gate.touch()

    started = local.start_server(layout, command=command(layout, "--start-after", str(gate)), say=say)
    assert started.is_new and starts(layout) == 1
    assert any("The server is starting: migrating the database" in text for text in said)


def test_a_server_that_gets_nowhere_is_no_longer_waited_for_and_left_alone(layout: Layout) -> None:
    gate = layout.root / "gate"
    slow = command(layout, "--start-after", str(gate))
    with pytest.raises(TimedOut, match="no progress") as caught:
        local.start_server(layout, command=slow, patience_s=0.0)
    assert "left running" in caught.value.message
    gate.touch()
    assert not local.start_server(layout, command=slow).is_new, "the first one has come up"
    assert starts(layout) == 1


def test_a_start_that_was_interrupted_is_told_of_seen_and_stopped(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its launch and its lock a server loads its program, which takes seconds on a busy machine."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(patience.Patience, "step", interrupt)
        local.start_server(layout, command=[sys.executable, "-c", "import time; time.sleep(600)"], say=said.append)
    assert "continues to start" in said[-1] and "shoal server status" in said[-1]
    record = local.starting_record(layout)
    assert record is not None and record.doing == "loading its program"
    stopped = local.stop_server(layout)
    assert stopped is not None and stopped.pid == record.pid
    assert local.starting_record(layout) is None


def test_a_busy_server_is_waited_for_and_no_second_one_is_started(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, said = layout.root / "busy", list[str]()
    url = local.start_server(layout, command=command(layout, "--busy-while", str(busy))).record.url
    monkeypatch.setattr(patience, "FIRST_WORD_S", 0.0)
    monkeypatch.setattr(server_record.health_of, "__kwdefaults__", {"timeout_s": 0.2})
    busy.touch()

    def say(text: str) -> None:
        said.append(text)
        busy.unlink(missing_ok=True)

    assert local.ensure_local_server(layout, say=say)[0] == url
    assert starts(layout) == 1
    assert "busy: it does not answer yet" in said[0]


def test_commands_on_a_copy_never_touch_the_server_of_the_original(layout: Layout, tmp_path: Path) -> None:
    record = local.start_server(layout, command=command(layout)).record
    copy = Layout(tmp_path / "copy")
    shutil.copytree(layout.root, copy.root)
    assert local.running_server(copy) is None
    assert local.stop_server(copy) is None
    assert local.local_key(copy, record.url) is None
    assert local.is_alive(record)
    other = local.start_server(copy, command=command(copy))
    try:
        assert other.is_new and other.record.url != record.url
        assert instance_id(copy) != instance_id(layout), "the copy is an instance of its own now"
        assert local.running_server(layout) == record
    finally:
        assert local.stop_server(copy) == other.record
    assert local.is_alive(record)


def test_a_copy_of_a_0_1_directory_is_not_taken_for_the_original_either(layout: Layout, tmp_path: Path) -> None:
    record = local.start_server(layout, command=command(layout, "--old")).record
    copy = Layout(tmp_path / "copy")
    shutil.copytree(layout.root, copy.root)
    assert local.running_server(copy) is None and local.stop_server(copy) is None
    assert local.running_server(layout) == record, "it has neither id nor place, and is found all the same"


def test_a_renamed_directory_keeps_its_server_and_its_id(layout: Layout, tmp_path: Path) -> None:
    record = local.start_server(layout, command=command(layout)).record
    moved, known = Layout(tmp_path / "moved"), instance_id(layout)
    layout.root.rename(moved.root)
    try:
        assert local.running_server(moved) == record
        assert instance_id(moved) == known
    finally:
        moved.root.rename(layout.root)


def test_another_server_on_the_same_port_is_not_ours(layout: Layout, tmp_path: Path) -> None:
    ours = local.start_server(layout, command=command(layout)).record
    other = Layout(tmp_path / "other")
    strange = local.start_server(other, command=command(other)).record
    try:
        found = json.loads(layout.server_file.read_text())
        layout.server_file.write_text(json.dumps({**found, "url": strange.url}))
        assert local.running_server(layout) is None
        assert local.own_record(layout) is not None, "it still runs, and can be stopped"
    finally:
        local.stop_server(other)
    assert local.is_alive(ours)


def test_autostart_can_be_forbidden(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_NO_AUTOSTART", "1")
    with pytest.raises(Unreachable, match="SHOAL_NO_AUTOSTART"):
        local.ensure_local_server(layout)
    assert not layout.root.exists()


def test_a_missing_extra_is_explained_with_the_pip_command(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SERVER_MODULES", ("json", "no_such_module"))
    with pytest.raises(MissingExtra, match="no_such_module") as caught:
        local.start_server(layout)
    assert "pip install 'shoal-train[server]'" in (caught.value.hint or "")


def test_a_key_others_can_read_is_refused(layout: Layout) -> None:
    layout.server_dir.mkdir(parents=True)
    layout.owner_key.write_text("k")
    layout.owner_key.chmod(0o640)
    record = local.ServerRecord(1, "http://127.0.0.1:9", boot_id(), 0.0)
    with pytest.raises(AuthError, match="read by other users"):
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
