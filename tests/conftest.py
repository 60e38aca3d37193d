"""Rules for all tests: time limits follow the machine's speed, flaky tests are named, nothing is left behind.

Ctrl-C works though a shell may have put us in the background, and what one test's imports change for the whole process is
changed back.
"""

import gc
import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from shoal.core.errors import Refused
from shoal.engines.kinds import kinds
from shoal.testing import leaks, patience
from shoal.testing.groups import expected, file_of, group_of, make_scheduler
from shoal.testing.leaks import *  # noqa: F403

settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

# A shell without job control has its background processes ignore these, and so would all processes the tests start.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),  # nohup
):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)

NETWORK = pytest.StashKey[set[str]]()
DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds each file with real processes took; a run with SHOAL_TEST_DURATIONS=1 writes it anew."""
TAKEN: Counter[str] = Counter()
CLUSTER = re.compile(r"test_(cluster|elastic|hosts|lease|pool|ray|slurm|swarm)")
TIERS = {"unit": "fast", "contract": "fast", "integration": "process", "e2e": "process"}


def pytest_configure(config: pytest.Config) -> None:
    if patience.VARIABLE not in os.environ:  # workers of xdist inherit it
        beside = max(1.0, (config.getoption("numprocesses", None) or 1) / (os.cpu_count() or 1))
        os.environ[patience.VARIABLE] = f"{patience.measure() * beside:.2f}"
    limit = float(config.getini("timeout") or 0)
    if limit and not config.getoption("timeout", None):
        config.option.timeout = patience.patient(limit)


def pytest_sessionstart(session: pytest.Session) -> None:
    try:
        kinds()
    except Refused as error:  # said once, not by every test that starts a server
        pytest.exit(f"{error.message} {error.hint}", returncode=pytest.ExitCode.USAGE_ERROR)
    session.config.stash[NETWORK] = leaks.network()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Check for network interfaces left behind. Only the first process of a run does so, and not after unit tests, which use none."""
    if "PYTEST_XDIST_WORKER" not in os.environ and os.environ.get("SHOAL_TEST_DURATIONS"):
        DURATIONS.write_text(
            json.dumps({f: round(s) for f, s in sorted(TAKEN.items()) if s >= 1}, indent=1) + "\n", encoding="utf-8"
        )
    if "PYTEST_XDIST_WORKER" in os.environ or all(_tier(file) == "fast" for file in TAKEN):
        return
    if left := leaks.network() - session.config.stash[NETWORK]:
        print(f"\nleft behind: network {', '.join(sorted(left))}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection() -> None:
    gc.disable()  # what is imported stays, so looking for garbage among it only takes time


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_report_header() -> str:
    return f"time limits: × {patience.patience():.1f} (measured; {patience.VARIABLE} sets it)"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with its tier, by its folder and by the subject in its file's name."""
    tier = _tier(item.nodeid)
    item.add_marker("cluster" if tier == "process" and CLUSTER.match(item.path.name) else tier)
    own = item.get_closest_marker("timeout")
    if own is not None and own.args:
        item.add_marker(pytest.mark.timeout(patience.patient(own.args[0])), append=False)
    flaky = item.get_closest_marker("flaky")
    if flaky is not None and not flaky.kwargs.get("reason"):
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.flaky needs a reason=")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the files with real processes that take longest start first."""
    if not any(item.get_closest_marker("fast") for item in items):
        known = json.loads(DURATIONS.read_text(encoding="utf-8"))
        groups = expected((item.nodeid for item in items), known)
        items.sort(
            key=lambda item: (-groups[group_of(item.nodeid)], group_of(item.nodeid))
        )  # the order within a file stays


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _share_memory_by_descriptors()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _share_memory_by_descriptors()  # a fixture may have imported hivemind


def _share_memory_by_descriptors() -> None:
    """Undo what importing hivemind does to torch.

    It has torch share memory by files. A loader whose workers are killed then aborts the process that reads from them, and a
    helper process of torch stays.
    """
    shared = sys.modules.get("torch.multiprocessing")
    if shared is not None and shared.get_sharing_strategy() != "file_descriptor":
        shared.set_sharing_strategy("file_descriptor")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    TAKEN[file_of(report.nodeid)] += report.duration


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Have `--dist loadgroup` keep the tests of a file together, and the files that need the same resource."""
    return make_scheduler(config, log) if config.getoption("dist") == "loadgroup" else None


def _tier(nodeid: str) -> str:
    return TIERS[nodeid.removeprefix("tests/").partition("/")[0]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every test that failed once and passed when tried again: each is a bug, in the test or in Shoal."""
    seed = getattr(terminalreporter.config.option, "randomly_seed", None)
    if seed is not None:
        terminalreporter.line(f"shuffled; the same order again: -p randomly --randomly-seed={seed}")
    tried = terminalreporter.stats.get("rerun", [])
    terminalreporter.section("flaky tests" if tried else "no flaky test")
    for report in tried:
        terminalreporter.line(f"failed once: {report.nodeid}")
