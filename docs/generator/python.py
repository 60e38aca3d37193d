"""docs/reference/python.md: the Python API, from the docstrings in the source. Nothing is imported, as much of it needs torch."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from generator._markdown import anchor

SOURCE = Path(__file__).resolve().parents[2] / "src"
PARTS = {
    "shoal": "In a training script",
    "shoal.api": "Jobs and results from Python",
    "shoal.data": "Datasets, streamed",
    "shoal.integrations.hf": "The Hugging Face Trainer",
    "shoal.integrations.lightning": "Lightning",
    "shoal.train": "The Trainer",
    "shoal.train.data": "Training data of the Trainer",
}
"""Module → heading, in the order of the page."""
_WHOLE = ("shoal.integrations.hf", "shoal.integrations.lightning")
_SECTIONS = re.compile(r"^(Args|Returns|Yields|Raises|Example|Examples):\s*$", re.MULTILINE)
Node = ast.ClassDef | ast.FunctionDef


def page() -> str:
    parts = [_part(module, heading) for module, heading in PARTS.items()]
    contents = "\n".join(f"- [{heading}](#{anchor(heading)}): `{module}`" for module, heading in PARTS.items())
    return f"""# Python

What a script or a notebook calls. How to use it is in the guides: [the SDK](../howto/instrument-a-script.md),
[jobs and results](../howto/python.md), [streamed data](../howto/stream-data.md), [the Trainer](../howto/trainer.md).

{contents}

{"".join(parts)}"""


def _part(module: str, heading: str) -> str:
    shown = [text for name, node in _public(module) for text in _entry(module, name, node)]
    note = {"shoal.api": "Objects of these classes come from `shoal.connect()`; nobody makes them.\n\n"}
    return f"## {heading}\n\n{note.get(module, '')}" + "\n".join(shown) + "\n"


def _public(module: str) -> Iterator[tuple[str, Node]]:
    """Yield the public functions and classes of a module, by name."""
    for name, home in sorted(_homes(module).items(), key=lambda pair: pair[0].lower()):
        for node in _tree(home).body:
            is_overload = "overload" in map(ast.unparse, getattr(node, "decorator_list", []))
            if isinstance(node, Node) and node.name == name and not is_overload:
                yield name, node


def _homes(module: str) -> dict[str, str]:
    """Return public name → module that defines it."""
    tree = _tree(module)
    if module in _WHOLE:
        names = [node.name for node in tree.body if isinstance(node, Node) and not node.name.startswith("_")]
        return dict.fromkeys(names, module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("_PUBLIC", "_HOMES"):
            found = ast.literal_eval(node.value)
            break
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_names" and isinstance(node.args[1], ast.Dict):
            found = ast.literal_eval(node.args[1])
            break
    if module != "shoal":
        found = {name: home for name, home in found.items() if name not in _homes("shoal")}
    whole = {name: home if not home.startswith(".") else module + home for name, home in found.items()}
    return {name: home for name, home in whole.items() if home != f"{module}.{name}" and home.startswith("shoal.")}


def _entry(module: str, name: str, node: Node) -> Iterator[str]:
    yield f"### {module}.{name}\n\n{_described(node, f'{module}.{name}')}"
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and ast.get_docstring(member):
                yield f"#### {name}.{member.name}\n\n{_described(member, f'{_instance(name)}.{member.name}')}"


def _described(node: Node, called: str) -> str:
    text = ast.get_docstring(node) or ""
    body, sections = _split(text)
    is_made = isinstance(node, ast.ClassDef) and (_constructor(node) is None or re.search(r"\b[Mm]ade by `", text))
    shown = "" if _is_property(node) or is_made else f"```python\n{_signature(node, called)}\n```\n\n"
    parts = [shown + _prose(body)]
    if arguments := sections.get("Args"):
        parts.append("\n".join(f"- `{name}`: {_line(told)}" for name, told in _arguments(arguments)))
    for title in ("Returns", "Yields", "Raises"):
        if told := sections.get(title):
            parts.append(f"{title}: {_line(_first_down(told))}")
    if example := sections.get("Example") or sections.get("Examples"):
        parts.append(f"```pycon\n{inspect.cleandoc(example)}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _split(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the sections of a docstring, and title → content of each."""
    parts = _SECTIONS.split(text)
    contents = (re.split(r"^\S", part, maxsplit=1, flags=re.MULTILINE)[0] for part in parts[2::2])
    return parts[0].strip(), dict(zip(parts[1::2], (inspect.cleandoc(part) for part in contents), strict=True))


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    for found in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        name, _, told = found.strip().partition(":")
        if told:
            yield name, _first_down(told.strip())


def _first_down(text: str) -> str:
    """Return the text with a small first letter, as the rest of a line, unless that is a name or code."""
    return text[:1].lower() + text[1:] if re.match(r"[A-Z][a-z]* |An? ", text) else text


def _signature(node: Node, called: str) -> str:
    function = _constructor(node) if isinstance(node, ast.ClassDef) else node
    arguments = [_spaced(one) for one in _cut(_without_self(function.args))] if function is not None else []
    returns = ""
    if isinstance(node, ast.FunctionDef) and node.returns is not None:
        returns = f" -> {ast.unparse(node.returns)}"
    line = f"{called}({', '.join(arguments)}){returns}"
    if len(line) <= 100:
        return line
    inside = ",\n    ".join(arguments)
    return f"{called}(\n    {inside},\n){returns}"


def _without_self(arguments: ast.arguments) -> str:
    first = arguments.posonlyargs or arguments.args
    if first and first[0].arg in ("self", "cls"):
        first = first[1:]
        is_positional = bool(arguments.posonlyargs)
        arguments = ast.arguments(
            posonlyargs=first if is_positional else [], args=arguments.args if is_positional else first,
            vararg=arguments.vararg, kwonlyargs=arguments.kwonlyargs, kw_defaults=arguments.kw_defaults,
            kwarg=arguments.kwarg, defaults=arguments.defaults,
        )  # fmt: skip
    return ast.unparse(arguments)


def _spaced(argument: str) -> str:
    """Return an argument with spaces around its default, as formatters write it if there is a type."""
    typed, equals, default = argument.partition("=")
    return f"{typed} = {default}" if equals and ":" in typed else argument


def _cut(arguments: str) -> list[str]:
    """Return the arguments of a signature, cut at the commas that are in no bracket."""
    found, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [one.strip() for one in found if one.strip()]


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)


def _is_property(node: Node) -> bool:
    return isinstance(node, ast.FunctionDef) and any("property" in ast.unparse(d) for d in node.decorator_list)


def _instance(name: str) -> str:
    """Return the usual name of an object of a class: `Workspace` → `workspace`, `ShoalCallback` → `callback`."""
    return re.findall(r"[A-Z][a-z]*", name)[-1].lower() if name[:1].isupper() else name


def _prose(text: str) -> str:
    """Return text as it is in Markdown; blocks that are indented or tables of names stay as they are."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        is_block = any(re.match(r" {2,}|\S+ {3,}\S", line) for line in paragraph.splitlines())
        shown = inspect.cleandoc(paragraph) if is_block else " ".join(paragraph.split())
        paragraphs.append(f"```text\n{shown}\n```" if is_block else _escaped(shown))
    return "\n\n".join(paragraphs)


def _line(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<\[])", r"\\\1", part) for part in parts)


@cache
def _tree(module: str) -> ast.Module:
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
