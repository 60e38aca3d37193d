"""The examples are NetMind's guide: every code block of it is in them, with only the `...` filled in."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).with_name("netmind_guide.txt").read_text(encoding="utf-8")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "netmind"
CUSTOM_LOOP = (EXAMPLES / "custom_loop" / "story_custom_trainer.py").read_text(encoding="utf-8")
HF_TRAINER = (EXAMPLES / "hf_trainer" / "story_hf_trainer.py").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python (\w+)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
VARIANTS = [
    CUSTOM_LOOP.replace('torch.device("cuda:0" if torch.cuda.is_available() else "cpu")', 'torch.device("cuda:0")'),
    CUSTOM_LOOP.replace("(\n    torch.nn.parallel.DistributedDataParallel(model)\n)", "(model)"),
]
"""Variants that the guide allows; the integration tests run these too."""


def test_the_copy_of_the_guide_has_all_its_blocks():
    assert [kind for kind, _ in BLOCKS].count("custom_loop") == 12
    assert [kind for kind, _ in BLOCKS].count("hf_trainer") == 7
    assert VARIANTS[0] != CUSTOM_LOOP != VARIANTS[1]


@pytest.mark.parametrize(("kind", "block"), [b for b in BLOCKS if b[0] != "download"])
def test_an_example_holds_each_block_as_it_stands(kind, block):
    texts = [HF_TRAINER, CUSTOM_LOOP, *VARIANTS]
    problems = [missing(block, text) for text in texts]
    assert None in problems, f"not in any example: {problems}"


def missing(block: str, example: str) -> str | None:
    """The first piece of the block that does not come, in order, in the example; None if all do."""
    lines = [line.strip() for line in example.splitlines() if line.strip()]
    at = 0
    for piece in pieces(block):
        found = next((i for i in range(at, len(lines)) if lines[i : i + len(piece)] == piece), None)
        if found is None:
            return "\n".join(piece)
        at = found + len(piece)
    return None


def pieces(block: str) -> list[list[str]]:
    """Runs of lines between those the reader fills in, an empty dict among them. Imports stand alone: they may be apart, and come in any order."""
    found: list[list[str]] = [[]]
    for raw in block.splitlines():
        line = raw.strip()
        if not line:
            continue
        if "..." in line:
            found.append([])
        elif line.endswith("= {}"):
            found[-1].append(line)
            found.append([])
        elif re.match(r"(import|from) \w", line) or line == "training_args = setup_args()":
            found += [[line], []]
        else:
            found[-1].append(line)
    return [piece for piece in found if piece]
