import pytest

from shoal.core.errors import BY_CODE, CanNeverRun, Internal, NotFound, ShoalError, from_wire


def test_an_error_survives_the_wire():
    sent = CanNeverRun("too large", hint="ask for less", details={"nodes": 1})
    got = from_wire(sent.to_wire(), sent.http_status)
    assert type(got) is CanNeverRun
    assert (got.message, got.hint, got.details) == ("too large", "ask for less", {"nodes": 1})


def test_the_docstring_is_the_default_message():
    assert NotFound().message == "The requested object was not found."


def test_an_unknown_code_becomes_the_nearest_class():
    assert isinstance(from_wire({"error": {"code": "new_in_v9"}}, 404), NotFound)
    assert isinstance(from_wire({}, 599), Internal)


@pytest.mark.parametrize("cls", BY_CODE.values())
def test_every_error_has_a_code_of_its_own_a_message_and_a_documented_exit_code(cls):
    assert cls().message
    assert "\n" not in cls().message
    assert cls.exit_code in (1, 2, 3, 4, 5, 6, 7, 70)
    assert [c for c in BY_CODE.values() if c.code == cls.code] == [cls]
    assert issubclass(cls, ShoalError)
