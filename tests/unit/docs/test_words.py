"""Plain words: docstrings begin as sentences, the words of the list are not used, and each term has its one meaning."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = ROOT / "docs/explanation/glossary.md"
OTHER_MEANINGS = {
    "lease": r"lease_s\b(?!.*Old name)|lease of (the|its|an?) (node|agent)",
    "ledger": r"ledger of samples|samples? ledger|training ledger",
    "snapshot": r"snapshot of (the|a) (queue|scheduler|weights|model|swarm|state)",
    "trial": r"preflight trial|\b(a|one|short|first) trial runs?\b",
    "seed": r"seed process",
    "gateway": r"Ray('s)? gateway",
    "command": r"orders? (to|for|of) (the|an) agents?",
    "node": r"node (keeper|daemon)",
    "coordinator": r"\b[Kk]eepers?\b(?![`.])",
    "prefork": r"\b[Nn]urser(y|ies)\b",
    "outbox": r"agent('s)? spool|spool of the agent",
    "sampler": r"(system|machine) sampler|sampler of (the )?(CPU|machine|system)",
    "gang": r"\bcrew\b",
    "worker": r"worker nodes?\b",
    "peer": r"\bneighbou?rs of (a|the) node",
}
"""Texts that would use a word of the glossary in another meaning, or another word for its meaning."""


def words():
    spec = importlib.util.spec_from_file_location("words", ROOT / "scripts/words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_begin_as_sentences_and_pet_words_are_not_used(capsys):
    assert words().main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        '"""Of those that wait."""',
        'x = 1\n"""What is left."""',
        "def f():\n    '''By name.'''\n",
        'x = "made anew each day"\n',
    ],
)
def test_a_fragment_or_a_pet_word_is_found(text, tmp_path, monkeypatch):
    module = words()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "example.py").write_text(text)
    assert len(list(module.findings(tmp_path / "example.py"))) == 1


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("server/jobs/stacks.py", "def ask(): ...", True),
        ("server/jobs/stacks.py", "class SlotKeeper:\n    def tell_all(self): ...", True),
        ("sdk/saving/peers.py", "def leave(): ...", True),
        ("tune/search.py", "class Searcher:\n    def ask(self): ...\n    def tell(self): ...", False),
        ("swarm/optimizer.py", "def leave(): ...", False),
        ("testing/engines.py", "def test_cleaning_leaves_nothing(): ...", False),
        ("sdk/progress.py", "def remaining_s(takeover, intake): ...", False),
    ],
)
def test_a_name_that_does_not_say_what_it_does_is_found(path, text, found, tmp_path, monkeypatch):
    module = words()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    file = tmp_path / module.SOURCE / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert bool(list(module.findings(file))) is found


def test_each_name_that_is_kept_exists():
    module = words()
    source = ROOT / module.SOURCE
    files = {path.relative_to(source).as_posix(): path.read_text() for path in source.rglob("*.py")}
    for name, places in module.ALLOWED_NAMES.items():
        assert any(path.startswith(places) and re.search(rf"(def|class) {name}\b", files[path]) for path in files), name


def shown() -> dict[str, str]:
    """Return all texts for people, by path: help, API and settings (in the reference), guides, pages of the console."""
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src/shoal/server/web/templates").glob("*.html"),
        ROOT / "README.md",
    ]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in pages if path != GLOSSARY}


def test_every_term_of_the_glossary_is_used_and_in_its_one_meaning():
    terms = re.findall(r"^\| \*\*([^*]+)\*\* \|", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(terms) >= 50 and len(set(terms)) == len(terms)
    assert set(OTHER_MEANINGS) <= set(terms)
    texts = shown()
    wrong = {
        (word, path): found[0]
        for word, other in OTHER_MEANINGS.items()
        for path, text in texts.items()
        if (found := re.search(other, text))
    }
    assert not wrong, wrong
    everywhere = "\n".join(texts.values()).lower()
    assert not [term for term in terms if term.lower() not in everywhere]


def test_one_layer_line_in_linter_architecture_and_contributing():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    line = " → ".join(next(contract["layers"] for contract in contracts if contract["type"] == "layers"))
    assert f"\n{line}\n" in (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    assert f"\n{line}\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_package_is_drawn_in_the_architecture():
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    named = set(
        re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `")))
    )
    source = ROOT / "src/shoal"
    packages = {
        path.parent.name for folder in ("", "server", "agent") for path in (source / folder).glob("*/__init__.py")
    }
    assert packages - named == set()


def test_no_folder_has_more_than_thirty_modules():
    count = {str(f.relative_to(ROOT)): len(list(f.glob("*.py"))) for f in (ROOT / "src/shoal").rglob("*") if f.is_dir()}
    large = {
        name: modules
        for name, modules in count.items()
        if modules > 31 and name not in ("src/shoal/core", "src/shoal/client")
    }
    assert not large, large
