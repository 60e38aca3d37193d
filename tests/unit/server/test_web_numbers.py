"""Numbers the console is sent, however odd, are the sender's mistake and no bug of the server's."""

import pytest

from shoal.testing.server import add_job

HUGE = str(2**63)


@pytest.mark.parametrize("name", ["attempt", "node", "rank"])
def test_a_log_is_not_filtered_by_what_no_job_can_have(browser, ctx, anna, name):
    add_job(ctx, anna)
    answer = browser.get(f"/w/default/jobs/a-job/logs/lines?{name}={HUGE}")
    assert answer.status_code == 422


@pytest.mark.parametrize("days", ["²", "9" * 5000])
def test_a_key_lives_for_no_number_of_days_that_is_none(browser, days):
    answer = browser.post("/keys", {"name": "k", "scope": "read", "days": days})
    assert answer.status_code in (201, 422)
