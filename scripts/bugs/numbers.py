"""Bugs in numbers that people rely on: logs, metrics, bills, how a run ended, samples and gradients."""

from __future__ import annotations

from bugs.mutant import Mutant

_ORDER_TESTS = "tests/unit/sdk/test_order.py"

NUMBERS = (
    Mutant(
        name="log-lines-reversed",
        fault="lines of one moment come in reverse",
        file="src/shoal/server/jobs/streams.py",
        old="return sorted(lines, key=lambda line: (line.attempt, line.at, line.node))",
        new="return sorted(reversed(lines), key=lambda line: (line.attempt, line.at, line.node))",
        tests=("tests/unit/server/test_web_logs.py::test_lines_of_one_moment_are_read_in_the_order_they_were_written",),
    ),
    Mutant(
        name="log-tail-reversed",
        fault="the last lines of a log come in reverse where they have one time",
        file="src/shoal/server/web/job/logs.py",
        old="cursor, earlier=False, is_reversed=True)",
        new="cursor, earlier=False)",
        tests=("tests/unit/server/test_web_logs.py::test_lines_of_one_moment_are_read_in_the_order_they_were_written",),
    ),
    Mutant(
        name="segment-doubled-after-reconnect",
        fault="a segment of the log that is sent again is stored again",
        file="src/shoal/server/jobs/streams.py",
        old="_in_time(ctx, session, who, records[head.next_seq - seq_first :]) if r is not None]",
        new="_in_time(ctx, session, who, records) if r is not None]",
        tests=("tests/contract/server/test_runs.py::test_lines_sent_again_in_any_overlap_count_once",),
    ),
    Mutant(
        name="metric-stored-twice-after-reconnect",
        fault="points that an agent sends again after it reconnects are stored again",
        file="src/shoal/server/metrics/intake.py",
        old="            if line < made.heads.get(rank, 0):\n                continue\n",
        new="",
        tests=("tests/unit/server/test_stitch.py::test_lines_below_a_ranks_head_came_before",),
    ),
    Mutant(
        name="metric-drawn-twice-after-resume",
        fault="steps that a run has done again are drawn twice",
        file="src/shoal/server/metrics/stitch.py",
        old="        mask[:-1] &= joined[:-1] < later[1:]\n",
        new="        mask[:-1] &= joined[:-1] <= later[1:]\n",
        tests=(
            "tests/contract/server/test_metrics.py::test_a_run_that_goes_back_within_one_attempt_is_not_doubled_either",
        ),
    ),
    Mutant(
        name="ledger-hour-doubled",
        fault="hours that were entered are entered again",
        file="src/shoal/server/billing/ledger_rules.py",
        old="return replace(open_, start_ms=split), list(_pieces(open_.start_ms, split))",
        new="return open_, list(_pieces(open_.start_ms, split))",
        tests=("tests/contract/server/test_billing.py::test_what_runs_is_in_the_sums_and_is_entered_by_the_hour",),
    ),
    Mutant(
        name="failed-run-finished",
        fault="a run whose worker ended with 1 is recorded as finished",
        file="src/shoal/agent/sdk_records/run_end.py",
        old="    if exit_code == 0:\n",
        new="    if exit_code in (0, 1):\n",
        tests=("tests/unit/agent/test_run_end.py",),
    ),
    Mutant(
        name="exit-1-finished",
        fault="a script that calls exit(1) is recorded as finished",
        file="src/shoal/sdk/start.py",
        old="            self._error = error\n        raise error\n",
        new="            self._error = None\n        raise error\n",
        tests=("tests/integration/test_sdk_run.py::test_the_exit_of_a_script_decides_how_its_run_ended",),
        tier="process",
    ),
    Mutant(
        name="sample-dealt-twice",
        fault="two ranks are given the same samples of a global batch",
        file="src/shoal/sdk/samples/order.py",
        old="first = piece * each + min(piece, more)",
        new="first = piece * each",
        tests=(f"{_ORDER_TESTS}::test_dealt_to_any_world_each_sample_comes_once_in_the_order_of_the_epoch",),
    ),
    Mutant(
        name="true-gradient-weight",
        fault="the true gradient is too small by the number of workers",
        file="src/shoal/train/gradients.py",
        old="factor = pieces * self._world_size / samples",
        new="factor = pieces / samples",
        tests=("tests/unit/train/test_true_gradient.py::test_it_is_the_gradient_of_the_whole_batch",),
    ),
    Mutant(
        name="accumulation-weight",
        fault="pieces of a global batch count the same though they differ in size",
        file="src/shoal/sdk/samples/order.py",
        old="weight = 1.0 if count * self.world == total else count * self.world / total",
        new="weight = 1.0 / parts",
        tests=(f"{_ORDER_TESTS}::test_dealt_to_any_world_each_sample_comes_once_in_the_order_of_the_epoch",),
    ),
    Mutant(
        name="swarm-averages-nan",
        fault="a peer's NaN becomes part of everybody's average",
        file="src/shoal/swarm/update_checks.py",
        old="        if not torch.isfinite(tensor).all():\n",
        new="        if False:\n",
        tests=("tests/unit/swarm/test_swarm_guards.py::test_updates_that_cannot_be_one_are_named",),
    ),
)
