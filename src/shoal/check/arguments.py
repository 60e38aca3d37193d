"""Command line of a script: the options that its argparse calls define, and the arguments that it is given."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from shoal.check.calls import has_unpacking, keyword_of
from shoal.check.module import Module, is_from
from shoal.check.program import Program

_OTHER_PARSERS = (
    "click",
    "typer",
    "tyro",
    "fire",
    "absl",
    "hydra",
    "jsonargparse",
    "simple_parsing",
    "cyclopts",
    "docopt",
)
_PARSER = "argparse.ArgumentParser()"
_NO_VALUE = frozenset({"store_true", "store_false", "count", "store_const", "append_const", "help", "version"})


@dataclass(frozen=True, slots=True)
class Option:
    module: Module
    call: ast.Call
    names: tuple[str, ...]
    """Names as typed: '--lr', '-l', or a single word without dashes for a positional."""
    dest: str

    @property
    def is_positional(self) -> bool:
        return not self.names[0].startswith("-")

    @property
    def action(self) -> str:
        node = keyword_of(self.call, "action")
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "" if node else "store"

    @property
    def has_one_value(self) -> bool:
        return self.action == "store" and keyword_of(self.call, "nargs") is None

    @property
    def is_required(self) -> bool:
        node = keyword_of(self.call, "required")
        return isinstance(node, ast.Constant) and node.value is True


class Arguments:
    """Options of a program and its arguments. `sure` is True if the listed options are certainly all that it accepts."""

    def __init__(self, program: Program, given: tuple[str, ...] | None):
        self.given = given
        self.options: list[Option] = []
        self.parser: tuple[Module, ast.Call] | None = None
        self.sure = self._read(program)

    def value_of(self, module: Module, node: ast.Attribute) -> tuple[bool, ast.expr | str | None]:
        """Return whether the value of `args.name` is known, and the value: text from the command line, or the default."""
        origins = module.origins(node.value)
        if not origins or not all(o.startswith(_PARSER) and "parse_" in o for o in origins):
            return False, None
        options = [option for option in self.options if option.dest == node.attr]
        if len(options) != 1 or self.given is None:
            return False, None
        option = options[0]
        if option.is_positional or not option.has_one_value:
            return False, None
        if (text := self.text_given(option)) is not None:
            return True, text
        return True, keyword_of(option.call, "default")

    def text_named(self, name: str) -> str | None:
        """Return the value of `--name=value`, `--name value` or `name=value`, for scripts that set variables by themselves."""
        words, found = self.given or (), None
        for index, word in enumerate(words):
            left, equals, value = word.partition("=")
            if left.lstrip("-").replace("-", "_") == name and (equals or word.startswith("--")):
                found = value if equals else "".join(words[index + 1 : index + 2])
        return found

    def text_given(self, option: Option) -> str | None:
        """Return the value of an option on the command line, or None; the last one counts."""
        found = None
        for index, word in enumerate(self.given or ()):
            name, equals, value = word.partition("=")
            if self.match(name) is option:
                after = (self.given or ())[index + 1 : index + 2]
                found = value if equals else (after[0] if after else "")
        return found

    def match(self, word: str) -> Option | None:
        """Return the option that a word names, possibly as an abbreviation, or None."""
        for option in self.options:
            if word in option.names:
                return option
        if not word.startswith("--"):
            return None
        found = [o for o in self.options if any(n.startswith(word) for n in o.names)]
        return found[0] if len(found) == 1 else None

    def _read(self, program: Program) -> bool:
        parsers = list(program.calls("argparse", "ArgumentParser"))
        if len(parsers) == 1:
            self.parser = parsers[0]
        sure = len(parsers) == 1 and not program.imports(*_OTHER_PARSERS) and not parsers[0][1].args
        for module, call in parsers:
            allowed = {"description", "prog", "epilog", "usage", "formatter_class"}
            sure = sure and {k.arg for k in call.keywords} <= allowed and module.path == program.entry
        for module, call, method in program.methods("add_argument"):
            sure = self._add(module, call, method) and sure
        strange = ("parse_known_args", "parse_known_intermixed_args", "add_subparsers", "set_defaults", "_add_action")
        if next(program.methods(*strange), None) is not None or program.mentions("HfArgumentParser", "sys.argv"):
            return False
        if any(_passes_parser_on(module) for module in program.modules):
            return False
        parses = [(m, c) for m, c, f in program.methods("parse_args") if m.origins(f.value) == {_PARSER}]
        return sure and len(parses) == 1 and not parses[0][1].args and not parses[0][1].keywords

    def _add(self, module: Module, call: ast.Call, method: ast.Attribute) -> bool:
        names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if has_unpacking(call) or not names or len(names) != len(call.args):
            return False
        dest = keyword_of(call, "dest")
        long = next((n for n in names if n.startswith("--")), names[0])
        written = dest.value if isinstance(dest, ast.Constant) else long.lstrip("-").replace("-", "_")
        action = keyword_of(call, "action")
        if action is not None and ast.unparse(action).endswith("BooleanOptionalAction"):
            names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
        self.options.append(Option(module, call, tuple(names), str(written)))
        origins = module.origins(method.value)
        made = (_PARSER, _PARSER + ".add_argument_group()", _PARSER + ".add_mutually_exclusive_group()")
        certain = bool(origins) and all(o in made for o in origins)
        in_loop = bool(module.loops_around(call))
        return certain and not in_loop and not any(is_from(o, "click", "option") for o in origins)


@lru_cache(maxsize=4)
def arguments_of(program: Program, given: tuple[str, ...] | None) -> Arguments:
    return Arguments(program, given)


def _passes_parser_on(module: Module) -> bool:
    """Check whether the parser is passed to code of other packages, which may add options to it."""
    return any(
        _PARSER in module.origins(argument) and not all(module.definition(o) for o in module.called(call))
        for call in module.all(ast.Call)
        for argument in (*call.args, *(k.value for k in call.keywords))
    )
