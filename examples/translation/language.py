"""Sentences of a toy English with their Italian: another order of words, genders, plurals. `python language.py pairs.tsv` writes a file."""

import argparse
import random
from pathlib import Path

LANGUAGES = ("en", "it")
NOUNS = {
    "cat": "gatto", "wolf": "lupo", "boy": "ragazzo", "girl": "ragazza", "book": "libro", "house": "casa", "star": "stella",
    "door": "porta", "horse": "cavallo", "wall": "muro", "rose": "rosa", "moon": "luna", "train": "treno", "table": "tavolo",
    "chair": "sedia", "mountain": "montagna",
}  # fmt: skip
VERBS = {
    "see": ("vede", "vedono"), "love": ("ama", "amano"), "find": ("trova", "trovano"), "paint": ("dipinge", "dipingono"),
    "follow": ("segue", "seguono"), "hear": ("sente", "sentono"), "take": ("prende", "prendono"),
}  # fmt: skip
ADJECTIVES = {"red": "ross", "small": "piccol", "black": "ner", "new": "nuov", "yellow": "giall", "cold": "fredd"}
ADVERBS = {"today": "oggi", "always": "sempre", "often": "spesso", "now": "ora", "here": "qui"}
ARTICLES = {"o": "il", "a": "la", "i": "i", "e": "le"}
PLURALS = {"o": "i", "a": "e"}
IRREGULAR = {"wolf": "wolves"}


def pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """(English, Italian), the same for the same seed."""
    draw = random.Random(seed)
    return [sentence(draw) for _ in range(count)]


def read_pairs(path: Path, source: str, target: str) -> list[tuple[str, str]]:
    """Return two columns of a file whose first line names its languages."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    names = header.split("\t")
    if not {source, target} <= set(names):
        raise SystemExit(f"{path} has {' and '.join(names)}, not {source} and {target}: try --lang_src {names[0]}")
    rows = (line.split("\t") for line in lines)
    return [(row[names.index(source)], row[names.index(target)]) for row in rows]


def sentence(draw: random.Random) -> tuple[str, str]:
    who, chi, many = phrase(draw)
    whom, cosa, _ = phrase(draw)
    verb = draw.choice(list(VERBS))
    adverb = draw.choice([*ADVERBS, "", ""])
    english = f"{who} {verb if many else verb + 's'} {whom} {adverb}"
    return english.strip(), f"{chi} {VERBS[verb][many]} {cosa} {ADVERBS.get(adverb, '')}".strip()


def phrase(draw: random.Random) -> tuple[str, str, bool]:
    """A noun with its article, and perhaps an adjective, which stands behind it in Italian and agrees with it."""
    noun, adjective, many = draw.choice(list(NOUNS)), draw.choice([*ADJECTIVES, "", ""]), draw.random() < 0.4
    stem, ending = NOUNS[noun][:-1], NOUNS[noun][-1]
    ending = PLURALS[ending] if many else ending
    english = IRREGULAR.get(noun, noun + "s") if many else noun
    words = [ARTICLES[ending], stem + ending] + ([ADJECTIVES[adjective] + ending] if adjective else [])
    return " ".join(filter(None, ["the", adjective, english])), " ".join(words), many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    lines = ["\t".join(LANGUAGES), *("\t".join(pair) for pair in pairs(args.count, args.seed))]
    args.file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
