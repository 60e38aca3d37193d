"""The example holds every code block of NetMind's guide to its swarm mode, with only its prose taken out."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "netmind" / "swarm"
BLOCKS = re.findall(r"^```diff (\S+)\n(.*?)^```$", (HERE / "swarm_readme.txt").read_text(encoding="utf-8"), re.S | re.M)
CODE = re.compile(r"\+( {4,}|data_collator =)")


def test_the_copy_of_the_guide_has_all_its_blocks():
    assert [name for name, _ in BLOCKS] == [
        "optimizer.py", "trainer.py", *["run_training_monitor.py"] * 3, "run_trainer.py",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "block"), BLOCKS)
def test_the_example_holds_each_block_as_it_stands(name, block):
    text = (EXAMPLE / name).read_text(encoding="utf-8")
    for piece in pieces(block):
        assert piece in text


def pieces(block: str) -> list[str]:
    """Return the code between lines of prose."""
    found: list[list[str]] = [[]]
    for line in block.splitlines():
        if CODE.match(line):
            found[-1].append(" " + line[1:] if line.startswith("+ ") else line[1:])
        elif line.startswith("+"):
            found.append([])
        else:
            found[-1].append(line)
    return [text for text in ("\n".join(piece).strip("\n") for piece in found) if text]
