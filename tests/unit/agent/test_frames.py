"""Facts derived from stacks: that of the main thread, the line of the user's code, and what it has called."""

import pytest

from shoal.agent.workers import stacks as agent_stacks
from shoal.agent.workers.frames import Frame, describe, from_faulthandler, from_py_spy
from shoal.sdk import stacks as sdk_stacks

SOURCE, OURS = "/home/me/nodes/att_1.0/source", "/opt/env/lib/python3.11/site-packages/shoal"
DUMP = """Thread 0x00007f01 (most recent call first):
  File "/opt/env/lib/python3.11/threading.py", line 331 in wait
  File "/opt/env/lib/python3.11/threading.py", line 975 in _bootstrap

Current thread 0x00007f02 (most recent call first):
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/nodes/att_1.0/source/train.py", line 41 in step
  File "/home/me/nodes/att_1.0/source/train.py", line 60 in <module>
"""
SPY = """Process 12: python -u train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 12 (idle): "MainThread"
    select (/env/lib/python3.11/selectors.py:416)
    __next__ (/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py:701)
    main (/home/me/nodes/att_1.0/source/train.py:9)
Thread 13 (idle): "other"
    wait (/env/lib/python3.11/threading.py:331)
"""


def told(frames):
    found = describe(frames, SOURCE, OURS)
    return found["inside"], found["at"], found["waits"]


def test_the_main_thread_stands_last_and_its_own_line_is_told_with_what_it_called():
    frames = from_faulthandler(DUMP)
    assert frames[0] == Frame(frames[0].path, 2501, "all_reduce") and len(frames) == 4
    assert told(frames) == ("all_reduce", "train.py:41", True)
    assert describe(frames, SOURCE, OURS)["frames"][0] == "all_reduce (torch/distributed/distributed_c10d.py:2501)"


def test_a_worker_in_its_own_code_is_there_and_waits_in_nothing():
    own = [Frame(f"{SOURCE}/data.py", 7, "__getitem__"), Frame(f"{OURS}/sdk/loader.py", 3, "__iter__"),
           Frame(f"{SOURCE}/train.py", 40, "<module>")]  # fmt: skip
    assert told(own) == ("__getitem__", "data.py:7", False)


def test_an_import_is_called_one():
    importing = [Frame("/opt/env/lib/python3.11/site-packages/torch/__init__.py", 9, "<module>"),
                 Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load"), Frame(f"{SOURCE}/train.py", 2, "<module>")]  # fmt: skip
    assert told(importing) == ("import", "train.py:2", True)


def test_special_methods_are_told_with_their_module():
    assert told(from_py_spy(SPY)) == ("dataloader.__next__", "train.py:9", True)


def test_a_stack_without_code_of_ones_own_is_told_by_its_first_frame():
    library = [Frame("/opt/env/lib/python3.11/site-packages/torch/a.py", 1, "wait"),
               Frame("/opt/env/lib/python3.11/runpy.py", 88, "_run_code")]  # fmt: skip
    assert told(library) == ("wait", "runpy.py:88", True)


@pytest.mark.parametrize("text", ["", "garbage", "Thread 0x1 (most recent call first):\n  <no Python frame>\n"])
def test_what_is_no_stack_gives_none(text):
    assert from_faulthandler(text) == [] and from_py_spy(text) == []


def test_the_agent_sends_the_signal_the_workers_listen_for():
    assert agent_stacks.SIGNAL == sdk_stacks.SIGNAL
