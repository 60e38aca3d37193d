"""Frames of a traceback lead to the lines of the job's code, and to no others."""

import re

from hypothesis import given
from hypothesis import strategies as st
from web_run import Run

from shoal.server.web.job.frames import pieces

LOG = [
    "Traceback (most recent call last):",
    '  File "/srv/nodes/att_1/source/pkg/data.py", line 2, in batch',
    "    row['label']",
    '  File "/usr/lib/python3.11/random.py", line 9, in choice',
    '  File "train.py", line 3, in <module>',
    "KeyError: 'label'",
]
FILES = {
    "train.py": b"import pkg\n\nbatch()\n",
    "pkg/data.py": b"def batch():\n    row['label']\n",
    "random.py": b"1\n",
}


def test_frames_in_the_code_are_links_to_their_lines(browser, ctx, anna):
    run = Run(ctx, anna, files=FILES)
    run.log(*LOG)
    run.become("starting", "running", "failed", reason="KeyError")
    page = browser.get("/w/default/jobs/a-job").text
    trace = re.search(r'<pre class="trace"[^>]*>(.*?)</pre>', page, re.DOTALL).group(1)
    links = re.findall(r'href="([^"]*)"', trace)
    assert [link.partition("/code?")[2] for link in links] == ["file=pkg/data.py#L2", "file=train.py#L3"]
    code = browser.get(links[0].partition("#")[0]).text
    assert 'id="L2"' in code and "label" in code


def test_a_file_of_a_library_with_the_same_name_is_no_part_of_the_code():
    (only,) = pieces('File "/usr/lib/python3.11/random.py", line 9, in choice', ["random.py"])
    assert not only.path


@given(
    st.lists(st.sampled_from([*LOG, 'File "source/train.py", line 1', "\n", 'File "', "é<b>"]), max_size=12).map(
        "\n".join
    )
)
def test_no_character_is_lost_or_added(text):
    assert "".join(piece.text for piece in pieces(text, FILES)) == text
