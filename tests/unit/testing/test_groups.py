"""Files that need the same resource form one group, and groups start by their expected time."""

from shoal.testing.extras import needs
from shoal.testing.groups import expected, file_of, group_of


def test_files_that_need_the_same_resource_are_one_group_and_others_stand_alone():
    assert group_of("tests/integration/test_ray_engine.py::TestIt::test_a[x::y]") == "ray"
    assert group_of("tests/integration/test_cluster_faults.py::test_b") == "ray"
    assert group_of("tests/integration/test_lease_end.py::test_c") == group_of(
        "tests/integration/test_hosts.py::test_d"
    )
    assert group_of("tests/e2e/test_console.py::test_e") == "tests/e2e/test_console.py"
    assert file_of("tests/e2e/test_console.py::test_e[a/b::c]") == "tests/e2e/test_console.py"


def test_a_group_is_expected_to_take_as_long_as_all_its_files():
    ids = ["i/test_ray_a.py::x", "i/test_ray_a.py::y", "i/test_ray_b.py::x", "i/test_up.py::x"]
    assert expected(ids, {"i/test_ray_a.py": 100, "i/test_up.py": 7}, unknown=10) == {"ray": 110, "i/test_up.py": 7}


def test_a_missing_library_skips_and_is_named():
    assert needs("json").args == (False,)
    assert needs("json", "no_such_library").args == (True,)
    assert needs("no_such_library").kwargs["reason"] == "not installed: no_such_library"
