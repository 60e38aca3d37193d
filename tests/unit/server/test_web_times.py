"""Relative times in the browser: the script says what the server said, also of what is yet to come."""

import json
import shutil
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from shoal.core.durations import ago
from shoal.server.web.render import STATIC

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OFFSETS_S = [-40 * 86400, -86400, -8 * 3600, -90, -6, -4, 0, 4, 6, 59, 60, 3600, 26 * 3600, 3 * 86400, 31 * 86400]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_and_the_server_say_the_same_of_times_past_and_to_come():
    moments = [NOW - timedelta(seconds=s) for s in OFFSETS_S]
    stamps = [m.isoformat().replace("+00:00", "Z") for m in moments]
    script = (STATIC / "js/times.js").read_text()
    script += f"\nconsole.log(JSON.stringify({json.dumps(stamps)}.map((s) => ago(s, {NOW.timestamp() * 1000}))));"
    done = subprocess.run(
        ["node", "--input-type=module", "-"], input=script, capture_output=True, text=True, check=True, timeout=120
    )
    assert json.loads(done.stdout) == [ago(m, NOW) for m in moments]
    assert ago(NOW + timedelta(hours=8), NOW) == "in 8 h"


def test_times_in_pages_are_kept_fresh_by_that_script():
    assert 'import { ago } from "./times.js"' in (STATIC / "js/app.js").read_text()
