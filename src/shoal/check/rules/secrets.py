"""Rule about credentials in the code, found by the form of known keys, or by entropy if a name suggests a secret."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator

from shoal.check.job_facts import JobFacts
from shoal.check.module import Module
from shoal.check.program import Program
from shoal.check.registry import Hit, rule
from shoal.core.checks import Severity

_SHAPES = {
    "an AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "an OpenAI key": r"\bsk-(?:proj-|svcacct-)?[A-Za-z0-9_-]{32,}",
    "an Anthropic key": r"\bsk-ant-[A-Za-z0-9_-]{24,}",
    "a Google key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "a Slack token": r"\bxox[abposr]-[A-Za-z0-9-]{20,}",
    "a Shoal key": r"\bshoals?_[A-Za-z0-9_-]{43}",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
}
_KNOWN = re.compile("|".join(f"(?P<g{i}>{shape})" for i, shape in enumerate(_SHAPES.values())))
_TELLING = re.compile(
    r"(?:^|_)(?:api_?key|secret|token|password|passwd|access_?key|auth|credential)s?(?:$|_)", re.IGNORECASE
)
_HARMLESS = re.compile(
    r"token_(?:id|type|count)|tokens?_per|max_|num_|pad_|bos_|eos_|unk_|mask_|special", re.IGNORECASE
)
_OPAQUE = re.compile(r"[A-Za-z0-9+/_=.-]{16,}")
_PLACEHOLDER = re.compile(
    r"your|example|change|placeholder|dummy|secret|token|password|xxx|\.\.\.|1234567", re.IGNORECASE
)
_MIN_BITS = 3.0
"""Minimum entropy per character: words are below it, random letters and digits above."""


@rule(
    "secret",
    Severity.WARNING,
    why="The code is stored with the job, and everyone who can see the job can read it.",
    fix="Use `shoal secret create NAME`, then `--secret ENV_NAME=NAME`, and read os.environ['ENV_NAME']. Revoke this one.",
)
def secret(program: Program, asked: JobFacts) -> Iterator[Hit]:
    for module in program.modules:
        names = _names(module)
        for node in module.all(ast.Constant):
            if not isinstance(node.value, str) or len(node.value) < 16:
                continue
            what = _known(node.value)
            if what is None and node in names and _is_random(node.value):
                what = f"the value of '{names[node]}'"
            if what is not None:
                yield Hit(module, node, f"This looks like {what}.")


def _known(text: str) -> str | None:
    found = _KNOWN.search(text)
    if found is None or (_PLACEHOLDER.search(found[0]) and "PRIVATE" not in found[0]):
        return None
    return list(_SHAPES)[int(str(found.lastgroup)[1:])]


def _names(module: Module) -> dict[ast.AST, str]:
    """Return a mapping of constant → name that suggests a secret: of a variable, keyword, dict key or env variable."""
    found: dict[ast.AST, str] = {}
    for node in module.scopes.nodes:
        match node:
            case ast.Assign(targets=[target], value=ast.Constant() as value):
                found[value] = ast.unparse(target)
            case ast.AnnAssign(target=target, value=ast.Constant() as value):
                found[value] = ast.unparse(target)
            case ast.keyword(arg=str(name), value=ast.Constant() as value):
                found[value] = name
            case ast.Dict():
                for key, held in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(held, ast.Constant):
                        found[held] = str(key.value)
    return {value: name for value, name in found.items() if _suggests_secret(name)}


def _suggests_secret(name: str) -> bool:
    last = name.rpartition(".")[2].strip("]'\"")
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last.rpartition("'")[2])
    return bool(_TELLING.search(snake)) and not _HARMLESS.search(snake)


def _is_random(text: str) -> bool:
    if not _OPAQUE.fullmatch(text) or _PLACEHOLDER.search(text) or not any(c.isdigit() for c in text):
        return False
    counts = Counter(text).values()
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts)
    return bits >= _MIN_BITS
