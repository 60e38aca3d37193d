"""Descriptions of machines as people write them: targets, GPUs, servers files."""

import pytest
from pydantic import ValidationError

from shoal.core.errors import InvalidSpec
from shoal.core.pool import PoolAdd, parse_gpus, parse_servers, parse_target


def test_a_target_is_a_host_with_or_without_a_user():
    assert parse_target("ada@10.0.0.5") == ("ada", "10.0.0.5")
    assert parse_target("gpu1") == (None, "gpu1")


def test_a_servers_file_names_hosts_and_their_gpus_as_the_older_systems_have_it():
    text = "10.0.0.5\n\n# the old ones\n10.0.0.6:0,1,2  # half of it\nada@gpu7:3\nfd00::1\n"
    assert parse_servers(text) == [("10.0.0.5", None), ("10.0.0.6", [0, 1, 2]), ("ada@gpu7", [3]), ("fd00::1", None)]


@pytest.mark.parametrize("text", ["10.0.0.5 10.0.0.6", "10.0.0.5:a,b"])
def test_a_bad_line_of_a_servers_file_is_refused_with_an_example(text):
    with pytest.raises(InvalidSpec) as caught:
        parse_servers(text)
    assert caught.value.hint


def test_gpus_are_numbers_or_uuids():
    assert parse_gpus("0,1,3") == [0, 1, 3]
    with pytest.raises(InvalidSpec, match="'all' is not a list of GPUs"):
        parse_gpus("all")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", "-oProxyCommand=touch /tmp/x"),
        ("host", "a b"),
        ("user", "-l"),
        ("user", "a@b"),
        ("name", "local"),
        ("name", "a/b"),
        ("key", "id_ed25519"),
        ("python", "bin/python\n"),
        ("gpus", [0, 0]),
        ("port", 0),
    ],
)
def test_what_could_be_taken_for_something_else_is_refused(field, value):
    with pytest.raises(ValidationError):
        PoolAdd.model_validate({"host": "10.0.0.5", field: value})


def test_gpus_and_slots_are_at_odds():
    with pytest.raises(ValidationError, match="cannot be combined"):
        PoolAdd(host="10.0.0.5", gpus=[0], slots=2)
