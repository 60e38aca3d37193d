"""The table of faults: rounds, lost, doubled and seconds, from the results that `./scripts/soak` leaves in `.soak`.

    ./scripts/soak --report

Two kinds of files are read: histories of the nemesis (nemesis-*.json), and results of the fault tests (*.xml). Nothing is counted
that was not run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.testing.nemesis.run import RESULTS

FAULTS: dict[str, str] = {
    "F1": "server killed with SIGKILL",
    "F2": "server killed at its n-th write",
    "F3": "power cut of the server's disk",
    "F4": "fsync fails with EIO",
    "F5": "disk full, read-only or failing (server, nodes)",
    "F6": "database locked, disk slow",
    "F7": "server away while jobs run",
    "F8": "worker killed",
    "F9": "agent killed",
    "F10": "node lost",
    "F11": "agent, server or rank frozen",
    "F12": "partition between nodes",
    "F13": "partition between node and server",
    "F14": "flapping link, loss, delay",
    "F15": "kill during a checkpoint",
    "F16": "chunk or shard damaged",
    "F17": "S3 fails, times out or is slow",
    "F18": "system clock changed (server, nodes)",
    "F19": "messages repeated, reordered, delayed",
    "F20": "racing stops, resumes and ends of a job",
    "F21": "stop in every phase of a job",
    "F22": "memory, fork, log and disk bombs",
    "F23": "lease ends with open sessions",
    "F24": "upgrade and rollback, killed in a migration",
    "F25": "backup under load, restored elsewhere",
    "F26": "certificates expire",
    "F27": "peer of a swarm killed, lying or slow",
    "F28": "all of them at random, for hours",
}
TESTS: dict[str, tuple[str, ...]] = {
    "F1": ("test_training_outlives_a_killed_server", "test_no_trial_is_lost_and_none_is_run_twice"),
    "F4": (
        "test_after_a_failed_flush_nothing_is_acknowledged",
        "test_a_commit_during_which_a_flush_of_the_store_fails",
    ),
    "F5": ("test_full_disk",),
    "F6": ("test_while_sixty_writers_wait_for_a_lock",),
    "F7": ("test_a_job_that_ends_while_the_server_is_down",),
    "F8": ("test_a_killed_worker_costs_one_attempt",),
    "F9": ("test_a_killed_agent_leaves_nothing",),
    "F10": ("test_a_machine_that_was_switched_off", "test_the_job_finishes_with_every_sample_once_and_in_order[host"),
    "F11": ("test_a_rank_stopped_by_a_signal", "test_the_job_finishes_with_every_sample_once_and_in_order[freeze"),
    "F12": ("test_the_job_finishes_with_every_sample_once_and_in_order[cable",),
    "F13": ("test_the_job_finishes_with_every_sample_once_and_in_order[cable",),
    "F14": ("test_a_long_lossy_and_narrow_line",),
    "F15": ("test_what_is_visible_is_whole_and_stays",),
    "F16": ("test_a_flipped_bit_on_disk_is_noticed", "test_verify_fails_for_a_flipped_bit"),
    "F17": ("tests.contract.server.test_exports",),
    "F18": ("test_a_changed_system_clock_ends_no_job",),
    "F19": ("test_any_order_of_appending_reading_acknowledging", "tests.contract.server.test_metrics"),
    "F20": ("tests.unit.server.test_scheduler_model",),
    "F21": ("test_stopping_a_stubborn_script",),
    "F22": ("test_bombs_hurt_only_the_lease", "test_a_job_that_fills_the_disk_is_named"),
    "F23": ("test_a_lease_that_ends_with_work_under_way",),
    "F24": ("test_upgrade", "tests.unit.server.test_old_home"),
    "F25": ("tests.unit.server.test_backup", "test_copies"),
    "F26": ("test_a_given_certificate_is_loaded_again_when_it_was_renewed",),
    "F27": ("test_liars_do_not_steer", "test_a_peer_killed_with_a_lock"),
}
"""Fault → parts of the names of tests that inject it, each a round."""


@dataclass(slots=True)
class Row:
    rounds: int = 0
    failed: int = 0
    lost: int = 0
    doubled: int = 0
    other: int = 0
    seconds: list[float] = field(default_factory=list)
    """Seconds until all worked again, of the rounds of the nemesis."""


def table(histories: Iterable[dict[str, Any]], tests: Iterable[tuple[str, bool]]) -> dict[str, Row]:
    """Count by fault. `tests`: names of tests that were run, and whether they passed."""
    rows = {id: Row() for id in FAULTS}
    for history in histories:
        for fault in history["faults"]:
            for id in {fault["id"].partition("-")[0], "F28"}:
                rows[id].rounds += 1
                if fault["recovered_s"] is not None:
                    rows[id].seconds.append(fault["recovered_s"])
        for finding in history["findings"]:
            for id in {_cause(history["faults"], finding), "F28"}:
                row = rows[id]
                row.lost += finding["kind"] == "lost"
                row.doubled += finding["kind"] == "doubled"
                row.other += finding["kind"] not in ("lost", "doubled")
    for name, passed in tests:
        for id, parts in TESTS.items():
            if any(part in name for part in parts):
                rows[id].rounds += 1
                rows[id].failed += not passed
    return rows


def _cause(faults: Sequence[dict[str, Any]], finding: dict[str, Any]) -> str:
    """Return the last fault that began before a finding; without a time, F28."""
    before = [f["id"].partition("-")[0] for f in faults if finding["at"] is not None and f["began"] <= finding["at"]]
    return before[-1] if before else "F28"


def as_markdown(rows: dict[str, Row]) -> str:
    lines = [
        "| | fault | rounds | lost | doubled | other | seconds until well: median, most |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for id, row in rows.items():
        seconds = f"{statistics.median(row.seconds):.1f}, {max(row.seconds):.1f}" if row.seconds else "–"
        counts = [row.lost, row.doubled, row.other + row.failed] if row.rounds else ["–"] * 3
        cells = [id, FAULTS[id], row.rounds or "not run", *counts, seconds]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def read_histories(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("nemesis-*.json"))]


def read_tests(folder: Path) -> list[tuple[str, bool]]:
    """Return the tests of all results of pytest in the folder that were not skipped, with whether they passed."""
    found = []
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).iter("testcase"):
            children = {child.tag for child in case}
            if "skipped" not in children:
                name = f"{case.get('classname')}::{case.get('name')}"
                found.append((name, not children & {"failure", "error"}))
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./scripts/soak --report", description="Print the table of faults.")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results (default: .soak)")
    options = parser.parse_args(words)
    histories, tests = read_histories(options.results), read_tests(options.results)
    if not histories and not tests:
        print(f"There are no results in {options.results}. Run ./scripts/soak --nemesis 1 first.", file=sys.stderr)
        return 3
    operations = [op for history in histories for op in history["operations"]]
    minutes = sum(max((f["ended"] or 0 for f in h["faults"]), default=0) for h in histories) / 60
    print(
        f"{datetime.now(UTC):%Y-%m-%d}; seeds {', '.join(str(h['seed']) for h in histories) or 'none'}; {minutes:.0f} minutes,"
    )
    print(
        f"{len(operations)} operations, {sum(op['result'] == 'ok' for op in operations)} of them acknowledged, ", end=""
    )
    print(f"{sum(len(h['found']['jobs']) for h in histories)} jobs; {len(tests)} fault tests.\n")
    print(as_markdown(table(histories, tests)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
