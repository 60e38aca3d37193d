import pytest

from shoal.core.artifacts import check_path
from shoal.core.errors import InvalidName, InvalidSpec
from shoal.core.ids import is_id, new_id
from shoal.core.names import check_name, did_you_mean


@pytest.mark.parametrize("name", ["a", "my-job", "My_Job.2", "0", "x" * 63])
def test_ordinary_names_are_taken(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "ä", "x" * 64, "a\n", "../x", "a;rm", "a\0b", "$(x)"])
def test_odd_names_are_refused_in_one_line(name):
    with pytest.raises(InvalidName) as error:
        check_name(name)
    assert "\n" not in error.value.message
    assert len(error.value.message) < 250


@pytest.mark.parametrize("path", ["a", "a/b.py", "träin.py", "a b/c"])
def test_ordinary_paths_are_taken(path):
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/.", "a\\b", "C:/x", "a\0b", "a\nb", "x" * 256, "a/" * 3000],
)
def test_paths_that_could_leave_the_tree_are_refused(path):
    with pytest.raises(InvalidSpec):
        check_path(path)


def test_ids_sort_by_time_and_do_not_repeat():
    ids = [new_id("job") for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert [i[:14] for i in ids] == sorted(i[:14] for i in ids)
    assert all(is_id(i, "job") for i in ids)


def test_only_a_whole_id_of_the_right_kind_counts_as_one():
    assert not is_id("job_short", "job")
    assert not is_id(new_id("src"), "job")
    assert not is_id("my-job", "job")


def test_a_near_miss_is_suggested_and_a_far_one_is_not():
    assert did_you_mean("trian.py", ["train.py", "model.py"]) == " Did you mean 'train.py'?"
    assert did_you_mean("zzz", ["train.py"]) == ""
