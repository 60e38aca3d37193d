"""Bugs in placement: which job runs where and when, on which devices, and in the scheduler's loop."""

from __future__ import annotations

from bugs.mutant import Mutant

_KINDS_TESTS = "tests/unit/server/test_scheduler_kinds.py"
_DECIDE_TESTS = "tests/unit/server/test_decide.py"
_LOOP_TESTS = "tests/unit/server/test_background_loops.py"

PLACEMENT = (
    Mutant(
        name="loop-dies-on-exception",
        fault="one exception ends a background loop of the server, such as the scheduler's",
        file="src/shoal/core/background_loops.py",
        old="            except BaseException as error:  # some libraries raise",
        new="            except KeyboardInterrupt as error:  # some libraries raise",
        tests=(f"{_LOOP_TESTS}::test_health_names_a_loop_that_fails_and_forgets_it_once_it_works",),
    ),
    Mutant(
        name="stage-stops-the-others",
        fault="a write that fails keeps the scheduler from watching its nodes",
        file="src/shoal/core/background_loops.py",
        old="            first = first or error\n",
        new="            raise\n",
        tests=(f"{_LOOP_TESTS}::test_one_stage_that_fails_keeps_none_of_the_others_from_being_done",),
    ),
    Mutant(
        name="cpu-slot-for-plain-job",
        fault="a plain job gets a CPU slot while the GPUs are busy",
        file="src/shoal/server/scheduler/kinds.py",
        old="                groups = (holding,)\n",
        new="                groups = (holding, (CPU,))\n",
        tests=(f"{_KINDS_TESTS}::test_a_plain_job_waits_for_busy_gpus_and_any_takes_the_cpu",),
    ),
    Mutant(
        name="cpu-slot-for-gpu-job",
        fault="a job that asks for a GPU gets a CPU slot",
        file="src/shoal/server/scheduler/kinds.py",
        old="            if demands and groups == ((job.device,),):\n",
        new="            groups = (*groups, (CPU,))\n            if demands and groups == ((job.device,),):\n",
        tests=(f"{_KINDS_TESTS}::test_a_job_that_names_a_device_gets_that_and_no_other",),
    ),
    Mutant(
        name="gang-mixes-kinds",
        fault="nodes of one attempt run on GPUs and on CPUs",
        file="src/shoal/server/scheduler/free_slots.py",
        old="        found = _preferred(choice, job, most, lambda kind: parts[kind].choose(job, most) if kind in parts else None)\n",
        new="        found = _of_one_kind(self.free, job, most, frozenset())\n",
        tests=(f"{_KINDS_TESTS}::test_a_gang_never_mixes_kinds",),
    ),
    Mutant(
        name="device-promise-not-checked",
        fault="a job on a GPU's slot trains on the CPU because its torch is a CPU build",
        file="src/shoal/core/device_check.py",
        old="    if build != kind:\n",
        new="    if False:\n",
        tests=("tests/unit/core/test_device_check.py::test_a_wrong_build_is_named_and_no_machine_is_blamed",),
    ),
    Mutant(
        name="device-promise-not-kept",
        fault="a worker whose device is missing continues",
        file="src/shoal/core/device_check.py",
        old="    if (found := broken(torch)) is not None:\n",
        new="    if (found := broken(torch)) is not None and promised() is None:\n",
        tests=("tests/unit/core/test_device_check.py::test_the_process_ends_with_the_reason_as_its_last_words",),
    ),
    Mutant(
        name="preempts-what-must-stay",
        fault="a job that must not be preempted makes way",
        file="src/shoal/server/scheduler/reserve.py",
        old="if candidate.priority >= job.priority or candidate.keeps or candidate.stopping:",
        new="if candidate.priority >= job.priority or candidate.stopping:",
        tests=(f"{_DECIDE_TESTS}::test_nothing_more_makes_way_while_enough_is_on_its_way",),
    ),
    Mutant(
        name="preempts-its-equals",
        fault="a job makes way for another of the same priority",
        file="src/shoal/server/scheduler/reserve.py",
        old="if candidate.priority >= job.priority or candidate.keeps or candidate.stopping:",
        new="if candidate.priority > job.priority or candidate.keeps or candidate.stopping:",
        tests=(f"{_DECIDE_TESTS}::test_only_strictly_lower_priorities_make_way_the_youngest_and_fewest_first",),
    ),
    Mutant(
        name="quota-exceeded-by-one",
        fault="a workspace holds one slot more than its quota",
        file="src/shoal/server/queue/quotas.py",
        old="return quota is None or held(session, workspace_id) + slots <= quota",
        new="return quota is None or held(session, workspace_id) + slots <= quota + 1",
        tests=("tests/contract/server/test_queue.py::test_a_quota_lowered_between_the_decision_and_the_start_holds",),
    ),
    Mutant(
        name="quota-planned-by-one-too-much",
        fault="a job that its workspace's quota has no room for is next in line and holds up others",
        file="src/shoal/server/scheduler/decide.py",
        old="if job.workspace not in self.full and job.min_slots <= self.left[job.workspace]:",
        new="if job.workspace not in self.full and job.min_slots <= self.left[job.workspace] + 1:",
        tests=(
            f"{_DECIDE_TESTS}"
            "::test_a_job_one_slot_above_what_is_left_of_its_quota_waits_for_the_quota_and_reserves_nothing",
        ),
    ),
    Mutant(
        name="first-line-of-an-error",
        fault="of an NCCL error only the first line is read, which does not say what happened",
        file="src/shoal/agent/node/end_reasons.py",
        old="more += [line for line in below if line not in more and classify(line) is not None][:3]",
        new="more += []",
        tests=("tests/unit/server/test_fault_table.py::test_a_fault_of_the_machines_or_their_network_is_tried_again",),
    ),
)
