"""Conversion of a notebook's `pip install` to lines of a requirements.txt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*|\{sys\.executable\}")
_PIP = re.compile(r"(?:.*/)?pip[\d.]*")
_CONDA = frozenset({"conda", "mamba", "micromamba"})
_WITH_VALUE = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
    "--trusted-host": "--trusted-host",
    "--no-binary": "--no-binary",
    "--only-binary": "--only-binary",
}
"""Options that are allowed in a requirements.txt, and their names there."""
_FROM_ELSEWHERE = {"-e": "", "--editable": "", "-r": "-r ", "--requirement": "-r "}
"""Options with a path or URL, and their prefix in a requirements.txt. Editable installs become normal ones in a job."""
_ALONE = frozenset({"--pre", "--no-index", "--prefer-binary"})
_SKIPPED_VALUE = frozenset(
    {"-t", "--target", "--prefix", "--root", "--timeout", "--retries", "--cache-dir", "--proxy", "--progress-bar"}
    | {"--upgrade-strategy", "--log", "-c", "--constraint", "-n", "--name", "--channel", "-p"}
)
PACKAGES = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
    "bs4": "beautifulsoup4",
}
"""Mapping of module → name of its package, where they differ."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(slots=True)
class Requirements:
    """Lines in order; for several lines about one package the last one counts, as in the notebook."""

    lines: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterable[str]) -> Requirements:
        made = cls()
        for line in lines:
            made.add(line)
        return made

    def covers(self, module: str) -> bool:
        """Check whether a line installs this module, judged by names."""
        return _key(PACKAGES.get(module, module)) in self.lines or any(f"/{module}" in line for line in self.lines)

    def add(self, line: str) -> None:
        key = _key(line)
        self.lines.pop(key, None)
        self.lines[key] = line

    def after(self, earlier: str) -> list[str]:
        """Return the lines of an existing requirements.txt, plus our lines about other packages."""
        kept = [line for line in earlier.splitlines() if line.strip()]
        there = {_key(line.strip()) for line in kept}
        return kept + [line for key, line in self.lines.items() if key not in there]


@dataclass(slots=True)
class PipRequest:
    """Request of one pip command."""

    verb: str
    lines: list[str]
    local: list[str]
    """Local paths, which exist where the notebook is, not where the job runs."""
    is_conda: bool = False


def read_pip(words: list[str]) -> PipRequest | None:
    """Return the request of a pip or conda command; None for other commands."""
    if words[:1] and words[0] in _CONDA:
        return _parse_request(words[1:], is_conda=True)
    if words[1:2] == ["-m"] and _PYTHON.fullmatch(words[0]):
        words = words[2:]
    words = words[1:] if words[:1] == ["uv"] else words
    return _parse_request(words[1:], is_conda=False) if words and _PIP.fullmatch(words[0]) else None


def _parse_request(words: list[str], *, is_conda: bool) -> PipRequest:
    verb = next((word for word in words if not word.startswith("-")), "")
    asked = PipRequest(verb, [], [], is_conda)
    if verb == "install":
        _read_install([word for n, word in enumerate(words) if n != words.index("install")], asked)
    return asked


def _read_install(words: list[str], asked: PipRequest) -> None:
    todo = list(words)
    while todo:
        word = todo.pop(0)
        option, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if option in _WITH_VALUE and not (asked.is_conda and option == "-f"):
            asked.lines.append(f"{_WITH_VALUE[option]} {value if has_value else todo.pop(0) if todo else ''}".strip())
        elif option in _FROM_ELSEWHERE:
            target = value if has_value else todo.pop(0) if todo else ""
            (asked.lines if "://" in target else asked.local).append(_FROM_ELSEWHERE[option] + target)
        elif option in _ALONE:
            asked.lines.append(option)
        elif option in _SKIPPED_VALUE:
            if not has_value and todo:
                todo.pop(0)
        elif word.startswith((".", "/", "~")) or (word.endswith((".whl", ".tar.gz")) and "://" not in word):
            asked.local.append(word)
        elif not word.startswith("-"):
            # conda writes one `=` where pip wants two.
            asked.lines.append(re.sub(r"(?<![=<>!~])=(?!=)", "==", word) if asked.is_conda else word)


def _key(line: str) -> str:
    found = _NAME.match(line)
    if found is None or "://" in found[0]:
        return line
    name = re.sub(r"[-_.]+", "-", found[0]).lower()
    rest = line[found.end() :].lstrip()
    return line if rest.startswith((":", "+", "/")) else name
