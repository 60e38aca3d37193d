"""Output of `shoal server status` for a server that runs but has problems."""

from shoal.cli.server.app import describe_health


def test_the_part_that_is_not_well_is_named_with_its_error():
    problem = {"name": "scheduler", "state": "failing", "since_s": 3.0, "error": "OSError: disk I/O error"}
    told = describe_health({"health": "degraded", "problems": [problem]})
    assert told == "degraded: scheduler is failing (OSError: disk I/O error)"


def test_a_shared_server_points_to_its_log():
    problem = {"name": "leases", "state": "late", "since_s": 90.0, "error": None}
    assert "shoal server log" in describe_health({"health": "degraded", "problems": [problem]})


def test_a_server_of_an_earlier_version_says_nothing_of_its_health():
    assert describe_health({"health": None, "problems": []}) == "unknown"
    assert describe_health({"health": "ok", "problems": []}) == "ok"
