"""One Python file: its syntax tree, its calls, and the origin of every value. Shared by all rules."""

from __future__ import annotations

import ast
import builtins
from functools import cached_property
from typing import TypeVar

from shoal.check.calls import argument_of, has_unpacking
from shoal.check.scopes import LOOPS, Binding, Scopes

UNKNOWN = "?"
_UNSURE = frozenset({UNKNOWN})
_BUILTINS = frozenset(dir(builtins))
_SAME_OBJECT = frozenset(
    {"to", "cuda", "cpu", "train", "eval", "half", "float", "double", "bfloat16", "requires_grad_"}
)
_GIVES_BACK = frozenset({"prepare", "setup", "setup_module", "setup_optimizers", "setup_dataloaders"})
_THROUGH = frozenset({"compile", "NetmindModel", "NetmindOptimizer", "NetmindScheduler", "NetmindDataloader"})

Node = TypeVar("Node", bound=ast.AST)


def is_from(origin: str, package: str, *names: str) -> bool:
    """Check whether an origin is one of these names, anywhere in a package.

    For example, is_from('torch.utils.data.DataLoader', 'torch', 'DataLoader') is True.
    """
    head, _, last = origin.rpartition(".")
    return last in names and (head == package or head.startswith(package + "."))


class Module:
    """Python file. Origins of values are written as in code: 'torch.optim.SGD()' is the result of that call, 'f()[1]' the
    second element of a result."""

    def __init__(self, path: str, text: str):
        self.path, self.text = path, text
        self.tree = ast.parse(text)
        self.scopes = Scopes(self.tree)
        self._origins: dict[ast.expr | Binding, frozenset[str]] = {}
        self._depth = 0

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def all(self, kind: type[Node]) -> list[Node]:
        """Return the nodes of one kind, in the order of the source."""
        return self._by_kind.get(kind, [])  # type: ignore[return-value]

    def within(self, root: ast.AST, kind: type[Node]) -> list[Node]:
        """Return the nodes of one kind below another, without those in nested functions."""
        return [
            node
            for node in ast.walk(root)
            if isinstance(node, kind) and self.function_of(node) is self._function_at(root)
        ]

    def function_of(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
        for above in self.scopes.above(node):
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return above
        return None

    def loops_around(self, node: ast.AST) -> list[ast.For | ast.AsyncFor | ast.While]:
        """Return the loops around a node in its own function, innermost first."""
        found = []
        for above in self.scopes.above(node):
            if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
                break
            if isinstance(above, LOOPS):
                found.append(above)
        return found

    def statement_of(self, node: ast.AST) -> ast.stmt:
        at = node
        while not isinstance(at, ast.stmt):
            at = self.scopes.parents[at]
        return at

    def is_tried(self, node: ast.AST) -> bool:
        """Check whether a node is inside a `try` with an `except`."""
        inside: ast.AST = node
        for above in self.scopes.above(node):
            if isinstance(above, ast.Try) and above.handlers and inside in above.body:
                return True
            inside = above
        return False

    def called(self, call: ast.Call) -> frozenset[str]:
        """Return the origins of the function that a call may call."""
        return self.origins(call.func)

    def calls(self, package: str, *names: str) -> list[ast.Call]:
        """Return the calls that certainly call one of these names of a package."""
        found = dict.fromkeys(call for name in names for call in self._calls_by_name.get(name, ()))
        return [call for call in found if all(is_from(origin, package, *names) for origin in self.called(call))]

    def origins(self, node: ast.expr) -> frozenset[str]:
        """Return the possible origins of a value; includes UNKNOWN if there may be others."""
        found = self._origins.get(node)
        if found is None:
            # For a value computed from itself (`x = f(x)`), the inner reference adds no origins of its own.
            self._origins[node] = frozenset()
            self._depth += 1
            found = self._origins[node] = self._origins_of(node)
            self._depth -= 1
        return found if found or self._depth else _UNSURE

    def values(self, node: ast.expr) -> list[ast.expr] | None:
        """Return the expressions that may be assigned to a name, or the node itself if it is not a name; None if unknown."""
        bindings = self.bindings(node)
        if bindings is None:
            return [node]
        found: list[ast.expr] = []
        for binding in bindings:
            if isinstance(binding.node, ast.arg):
                given = self._given(binding.node)
                if given is None:
                    return None
                found += given
            elif binding.value is None or binding.element is not None:
                return None
            else:
                found.append(binding.value)
        return found or None

    def bindings(self, node: ast.expr) -> list[Binding] | None:
        """Return the bindings of a name or of `self.name`; None for other expressions."""
        if isinstance(node, ast.Name):
            return self.scopes.of(node).find(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            key, scope = f"{node.value.id}.{node.attr}", self.scopes.of(node)
            at: ast.AST | None = scope.node
            while at is not None and not (isinstance(at, ast.ClassDef) and node.value.id == "self"):
                at = self.scopes.parents.get(at)
            return (self.scopes.inside(at).names.get(key) if at is not None else scope.find(key)) or None
        return None

    def definition(self, origin: str) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
        """Return the function or class of this file that an origin names, or None."""
        node = self._definitions.get(origin)
        return node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else None

    def bases(self, origin: str) -> frozenset[str]:
        """Return a class and, if it is defined in this file, all its known base classes."""
        found, ahead = {origin}, [origin]
        while ahead:
            node = self.definition(ahead.pop())
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                ahead += self.origins(base) - found
                found |= self.origins(base)
        return frozenset(found)

    def _origins_of(self, node: ast.expr) -> frozenset[str]:
        match node:
            case ast.Name():
                return self._of_name(node)
            case ast.Attribute():
                if self.bindings(node):
                    return self._of_bindings(self.bindings(node) or [])
                return _each(self.origins(node.value), f".{node.attr}")
            case ast.Call():
                return self._of_call(node)
            case ast.IfExp():
                return self.origins(node.body) | self.origins(node.orelse)
            case ast.BoolOp():
                return frozenset[str]().union(*(self.origins(value) for value in node.values))
            case ast.Await() | ast.NamedExpr():
                return self.origins(node.value)
            case ast.Subscript(slice=ast.Constant(value=int(index))):
                return _each(self.origins(node.value), f"[{index}]")
        return _UNSURE

    def _of_name(self, node: ast.Name) -> frozenset[str]:
        if bindings := self.scopes.of(node).find(node.id):
            return self._of_bindings(bindings)
        return frozenset({f"builtins.{node.id}"}) if node.id in _BUILTINS and not self.scopes.has_star else _UNSURE

    def _of_bindings(self, bindings: list[Binding]) -> frozenset[str]:
        for binding in bindings:
            if binding not in self._origins:
                self._origins[binding] = frozenset()
                self._origins[binding] = self._of_binding(binding)
        return frozenset[str]().union(*(self._origins[binding] for binding in bindings))

    def _of_binding(self, binding: Binding) -> frozenset[str]:
        match binding:
            case Binding(dotted=str(dotted)):
                return frozenset({dotted})
            case Binding(node=ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() as node):
                return frozenset({f"{self.path}:{node.name}:{node.lineno}"})
            case Binding(node=ast.arg() as parameter):
                given = self._given(parameter)
                return _UNSURE if given is None else frozenset[str]().union(*map(self.origins, given))
            case Binding(value=None):
                return _UNSURE
            case Binding(value=ast.expr() as value, element=None):
                return self.origins(value)
            case Binding(value=ast.Call() as call, element=int(index)):
                back = self.origins(call.args[index]) if _gives_back(call, index) else frozenset[str]()
                return _each(_each(self.called(call), "()"), f"[{index}]") | back
        return _UNSURE

    def _of_call(self, node: ast.Call) -> frozenset[str]:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_OBJECT:
            return self.origins(node.func.value)
        called = self.called(node)
        found = _each(called, "()")
        through = any(origin.rpartition(".")[2] in _THROUGH for origin in called)
        if (through and node.args) or (len(node.args) == 1 and _gives_back(node, 0)):
            found |= self.origins(node.args[0])
        return found

    def _given(self, parameter: ast.arg) -> list[ast.expr] | None:
        """Return the expressions that the calls in this file pass for a parameter; None if there may be other calls."""
        function = self.function_of(parameter)
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            return None
        sites = self._sites.get(function)
        if not sites or not isinstance(self.scopes.of(function).node, ast.Module):
            return None
        found = [argument_of(call, function, parameter) for call in sites]
        return None if None in found else [value for value in found if value is not None]

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        found: dict[type[ast.AST], list[ast.AST]] = {}
        for node in self.scopes.nodes:
            found.setdefault(type(node), []).append(node)
        return found

    @cached_property
    def _calls_by_name(self) -> dict[str, list[ast.Call]]:
        """Mapping of the last part of a call's origin → the calls."""
        found: dict[str, list[ast.Call]] = {}
        for call in self.all(ast.Call):
            for name in {origin.rpartition(".")[2] for origin in self.called(call)}:
                found.setdefault(name, []).append(call)
        return found

    @cached_property
    def _definitions(self) -> dict[str, ast.AST]:
        found: dict[str, ast.AST] = {}
        for node in self.scopes.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found[f"{self.path}:{node.name}:{node.lineno}"] = node
        return found

    @cached_property
    def _sites(self) -> dict[ast.AST, list[ast.Call]]:
        """Mapping of a function of this file → its calls, for functions that are only called (not passed on as values)."""
        found: dict[ast.AST, list[ast.Call]] = {}
        spoilt: set[ast.AST] = set()
        for name in self.all(ast.Name):
            bindings = self.scopes.of(name).find(name.id)
            if not isinstance(name.ctx, ast.Load) or len(bindings) != 1:
                continue
            call = self.scopes.parents[name]
            if isinstance(call, ast.Call) and call.func is name:
                found.setdefault(bindings[0].node, []).append(call)
            else:
                spoilt.add(bindings[0].node)
        return {function: calls for function, calls in found.items() if function not in spoilt}

    def _function_at(self, root: ast.AST) -> ast.AST | None:
        return root if isinstance(root, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else self.function_of(root)


def _each(origins: frozenset[str], suffix: str) -> frozenset[str]:
    return frozenset(origin if origin == UNKNOWN else origin + suffix for origin in origins)


def _gives_back(call: ast.Call, index: int) -> bool:
    """Check for calls like `a, b = run.prepare(a, b)`, which return their arguments, possibly wrapped, in the same order."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in _GIVES_BACK
        and index < len(call.args)
        and not has_unpacking(call)
    )
