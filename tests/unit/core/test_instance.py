"""The identity of a data directory: kept when it is renamed or restored in place, never shared with a copy."""

import fcntl
import json
import shutil

import pytest

from shoal.core.directory_identity import is_copied_node
from shoal.core.instance import Instance, claim, instance_id, is_held, mark_copy_handled
from shoal.core.settings import Layout


@pytest.fixture
def layout(tmp_path):
    made = Layout(tmp_path / "home")
    made.server_dir.mkdir(parents=True)
    return made


def copy_of(layout, name):
    made = Layout(layout.root.with_name(name))
    shutil.copytree(layout.root, made.root)
    return made


def rewrite(layout, **changes):
    found = json.loads(layout.instance_file.read_text())
    layout.instance_file.write_text(json.dumps({**found, **changes}))


def test_a_new_directory_gets_an_id_and_keeps_it(layout):
    assert instance_id(layout) is None
    first = claim(layout)
    assert first.copy_of is None and first.id.startswith("inst_")
    assert claim(layout) == first and instance_id(layout) == first.id


def test_a_renamed_directory_keeps_its_id(layout, tmp_path):
    first = claim(layout)
    moved = Layout(tmp_path / "moved")
    layout.root.rename(moved.root)
    assert instance_id(moved) == first.id and claim(moved) == first


def test_a_copy_gets_its_own_id_and_says_whose_it_is_a_copy_until_that_was_settled(layout):
    first = claim(layout)
    copy = copy_of(layout, "copy")
    assert instance_id(copy) is None, "it belongs to nobody before its first start"
    second = claim(copy)
    assert second.id != first.id and second.copy_of == first.id
    assert claim(copy) == second, "the server may have been killed before it had dealt with it"
    mark_copy_handled(copy, second)
    assert claim(copy) == Instance(second.id)
    assert claim(layout) == first


def test_a_copy_of_a_copy_is_neither(layout):
    ids = {claim(layout).id, claim(copy := copy_of(layout, "a")).id, claim(copy_of(copy, "b")).id}
    assert len(ids) == 3


def test_a_directory_restored_in_place_keeps_its_id(layout):
    first = claim(layout)
    backup = copy_of(layout, "backup")
    shutil.rmtree(layout.root)
    shutil.copytree(backup.root, layout.root)
    assert claim(layout) == first


def test_the_same_path_on_another_host_is_a_copy(layout):
    first = claim(layout)
    rewrite(layout, host="another", ino=1)
    assert claim(layout).copy_of == first.id


def test_a_snapshot_of_the_file_system_is_a_copy_and_a_renumbered_device_is_none(layout):
    first = claim(layout)
    rewrite(layout, dev=1, host="renamed")
    assert claim(layout) == first
    rewrite(layout, dev=1, path="/mnt/the/original/server")
    assert claim(layout).copy_of == first.id


def test_a_copy_can_take_over_by_word_of_its_owner(layout):
    first = claim(layout)
    copy = copy_of(layout, "copy")
    assert claim(copy, take_over=True) == first


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": 3}'])
def test_a_broken_file_is_replaced(layout, content):
    layout.instance_file.write_text(content)
    assert instance_id(layout) is None
    assert claim(layout).copy_of is None and instance_id(layout)


def test_the_lock_of_a_copy_is_free_while_the_original_is_held(layout):
    with layout.server_lock.open("a") as file:
        assert not is_held(layout.server_lock)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_held(layout.server_lock)
        assert not is_held(copy_of(layout, "copy").server_lock)
    assert not is_held(layout.server_dir / "no-such-file")


def test_a_copied_node_directory_is_told_from_a_moved_one(tmp_path):
    from shoal.agent.node.workdir import WorkDir

    node, copy, moved = tmp_path / "att.0", tmp_path / "copy", tmp_path / "moved"
    WorkDir(node).sign_in()
    shutil.copytree(node, copy)
    assert not is_copied_node(node) and is_copied_node(copy)
    node.rename(moved)
    assert not is_copied_node(moved) and is_copied_node(copy)


def test_a_copied_node_directory_of_0_1_is_told_by_the_path_of_its_launch(tmp_path):
    node, copy = tmp_path / "att.0", tmp_path / "copy"
    node.mkdir()
    (node / "launch.json").write_text(json.dumps({"work_dir": str(node)}))
    (node / "agent.json").write_text(json.dumps({"pid": 1}))
    shutil.copytree(node, copy)
    assert not is_copied_node(node) and is_copied_node(copy)
