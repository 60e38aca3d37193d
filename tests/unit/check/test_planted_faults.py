"""Every planted fault is found where it is, alone; good jobs have no finding at all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from idioms import IDIOMS
from looking import look
from planted import DDP, NETMIND, PLAIN, PLANTS, SDK, TWO, Plant

from shoal.check import rules
from shoal.check.job_facts import JobFacts
from shoal.check.registry import RULES
from shoal.check.runner import SYNTAX, check
from shoal.check.source import Source
from shoal.store.ignore import scan

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = {
    "quickstart": "train.py",
    "hugging_face": "train.py",
    "intent": "train.py",
    "masked_lm": "train.py",
    "vision": "train.py",
    "netmind/custom_loop": "story_custom_trainer.py",
    "netmind/hf_trainer": "story_hf_trainer.py",
    "topspin": "example/nlp/intent_dection/train_starter.py",
}
PAGES = ["instrument-a-script", "hugging-face", "accelerate-and-lightning", "netmind", "trainer"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found_at_its_line_and_nothing_else_is(name: str, tmp_path: Path) -> None:
    plant: Plant = PLANTS[name]
    text = plant.good.replace(plant.old, plant.new) if plant.old else plant.good
    assert plant.old in plant.good
    [finding] = look(tmp_path, {"train.py": text}, **plant.asked).findings
    assert (finding.rule, finding.severity) == (plant.rule, plant.severity)
    assert plant.at.strip() in text.splitlines()[finding.line - 1]
    assert finding.why and finding.fix and finding.path == "train.py"


def test_every_rule_has_a_planted_fault() -> None:
    rules.load()
    elsewhere = {"netmind-no-callback", "old-transformers"}
    assert set(RULES) | {SYNTAX} == {plant.rule for plant in PLANTS.values()} | elsewhere
    assert len(PLANTS) >= 14


@pytest.mark.parametrize("workers", [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("good", [SDK, DDP, NETMIND], ids=["sdk", "ddp", "netmind"])
def test_the_good_jobs_have_no_finding(good: str, workers: tuple[int, int], tmp_path: Path) -> None:
    nodes, accels = workers
    asked = TWO | {"nodes": nodes, "accels": accels, "args": ("--lr", "-1e-3") if good is SDK else ()}
    assert look(tmp_path, {"train.py": good}, **asked).findings == []


def test_a_plain_loop_on_one_worker_has_no_finding(tmp_path: Path) -> None:
    assert look(tmp_path, {"train.py": PLAIN}, args=(), datasets=frozenset()).findings == []


@pytest.mark.parametrize("idiom", IDIOMS)
def test_what_is_right_but_easy_to_mistake_has_no_finding(idiom: str, tmp_path: Path) -> None:
    for nodes in (1, 2):
        asked = {"nodes": nodes, "accels": 2, "datasets": frozenset[str](), "args": ()}
        assert look(tmp_path, IDIOMS[idiom], **asked).findings == []


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_have_no_finding(example: str, nodes: int) -> None:
    root = ROOT / "examples" / example
    source = Source(root, [f.path for f in scan(root).files])
    view = check(source, EXAMPLES[example], JobFacts(nodes=nodes, args=(), datasets=frozenset({"squad"})))
    assert view.findings == []
    assert view.frameworks and view.files


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_guides_has_no_finding(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs/howto" / f"{page}.md").read_text(encoding="utf-8")
    for number, block in enumerate(BLOCK.findall(text)):
        view = look(tmp_path, {f"{number}.py": block}, f"{number}.py", nodes=2)
        assert view.findings == [], block


def test_every_rule_is_on_the_page_that_explains_them() -> None:
    rules.load()
    page = (ROOT / "docs/howto/check.md").read_text(encoding="utf-8")
    assert [rule for rule in (*RULES, SYNTAX) if f"`{rule}`" not in page] == []
