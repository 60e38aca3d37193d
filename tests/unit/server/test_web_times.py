"""Relative times in the browser: the script says what the server said, also of what is yet to come."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from web_node import needs_node, run_node

from shoal.core.durations import ago, duration
from shoal.server.web.format import filesize
from shoal.server.web.render import STATIC

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OFFSETS_S = [-40 * 86400, -86400, -8 * 3600, -90, -6, -4, 0, 4, 6, 59, 60, 3600, 26 * 3600, 3 * 86400, 31 * 86400]


@needs_node
def test_the_page_and_the_server_say_the_same_of_times_past_and_to_come(tmp_path):
    moments = [NOW - timedelta(seconds=s) for s in OFFSETS_S]
    stamps = [m.isoformat().replace("+00:00", "Z") for m in moments]
    script = f"""import {{ ago }} from "./times.js";
    console.log(JSON.stringify({json.dumps(stamps)}.map((s) => ago(s, {NOW.timestamp() * 1000}))));"""
    assert run_node(tmp_path, script) == [ago(m, NOW) for m in moments]
    assert ago(NOW + timedelta(hours=8), NOW) == "in 8 h"


CLOCKS = """
import { clock, inZone, isUtc, setZone, zoneName } from "./times.js";
const kept = new Map(), at = Date.UTC(2026, 6, 1, 22, 30, 5);
globalThis.localStorage = { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v) };
globalThis.dispatchEvent = () => {};
const local = [clock(at), isUtc(), inZone(at).getHours()];
setZone("utc");
const utc = [clock(at), isUtc(), inZone(at).getHours()];
setZone("local");
console.log(JSON.stringify([local, utc, zoneName(at)]));
"""


@needs_node
def test_one_setting_chooses_the_zone_of_all_clock_times_and_the_zone_is_shown(tmp_path):
    local, utc, zone = run_node(tmp_path, CLOCKS, zone="Asia/Kolkata")
    assert local == ["2026-07-02 04:00:05 GMT+5:30", False, 4] and zone == "GMT+5:30"
    assert utc == ["2026-07-01 22:30:05 UTC", True, 22]


SIZES = [0, 1, 999, 1000, 1499, 123_456, 999_949, 5_000_000, 7_654_321_000, 3_200_000_000_000]
SECONDS = [0, 0.04, 0.4, 9.94, 9.96, 12.4, 59.6, 60, 200, 3599, 3600, 7500, 86_400, 273_600, 5_000_000]


@needs_node
def test_sizes_and_durations_are_written_alike_by_the_page_and_the_server(tmp_path):
    script = f"""import {{ bytes, seconds }} from "./units.js";
    console.log(JSON.stringify([{SIZES}.map(bytes), {SECONDS}.map(seconds)]));"""
    assert run_node(tmp_path, script) == [[filesize(n) for n in SIZES], [duration(s) for s in SECONDS]]


SCRIPTS = sorted(path.name for path in (STATIC / "js").glob("*.js"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_writes_clock_times_or_sizes_by_itself(name):
    text = (STATIC / "js" / name).read_text()
    if name not in ("times.js", "units.js"):
        assert not re.search(r"toLocale(Time|Date)?String|toTimeString|toISOString\(\)\.slice| [kMG]B`", text)


def test_times_in_pages_are_kept_fresh_by_that_script():
    assert 'import { ago, clock } from "./times.js"' in (STATIC / "js/app.js").read_text()
