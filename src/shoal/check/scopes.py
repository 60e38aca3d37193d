"""Scopes of one Python file and the bindings of names in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
_BINDING = (
    *(ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.withitem, ast.For),
    *(ast.AsyncFor, ast.comprehension, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg, ast.Delete),
    *(ast.ExceptHandler, ast.MatchAs),
)


@dataclass(frozen=True, slots=True)
class Binding:
    node: ast.AST
    """Statement, parameter or definition that binds the name."""
    value: ast.expr | None = None
    """Expression of the value; None if it is unknown or given by other fields."""
    element: int | None = None
    """Index of the element, if the expression is unpacked into several names."""
    dotted: str | None = None
    """Full name of an import."""


@dataclass(slots=True, eq=False)
class Scope:
    node: ast.AST
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    """Bindings by name; for a class also the attributes of its instances, as 'self.name'."""
    outer: dict[str, Scope] = field(default_factory=dict)
    """Names declared global or nonlocal here, with the scope that they belong to."""

    def find(self, name: str) -> list[Binding]:
        """Return the bindings in the innermost scope with the name; names of a class are visible only in its own body."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope.names[name]
            scope = scope.parent
        return []


class Scopes:
    """All scopes of a syntax tree. `parents` maps every node to its parent."""

    def __init__(self, tree: ast.Module):
        self.module = Scope(tree, None)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        """All nodes, in the order of the source."""
        self.has_star = False
        self._of: dict[ast.AST, Scope] = {tree: self.module}
        self._walk(tree)
        for node in self.nodes:
            if isinstance(node, _BINDING):
                self._bind(node)

    def of(self, node: ast.AST) -> Scope:
        """Return the scope in which the names of a node are looked up."""
        above: ast.AST | None = self.parents.get(node)
        while above is not None and above not in self._of:
            above = self.parents.get(above)
        return self._of[above] if above is not None else self.module

    def inside(self, function: ast.AST) -> Scope:
        """Return the scope that a function or class opens."""
        return self._of[function]

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, innermost first."""
        at = self.parents.get(node)
        while at is not None:
            yield at
            at = self.parents.get(at)

    def _walk(self, tree: ast.Module) -> None:
        stack: list[ast.AST] = [tree]
        while stack:
            node = stack.pop()
            self.nodes.append(node)
            children = list(ast.iter_child_nodes(node))
            for child in children:
                self.parents[child] = node
            stack.extend(reversed(children))
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                self._of[node] = Scope(node, self.of(node))
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                here = self.of(node)
                above = here.parent if isinstance(node, ast.Nonlocal) else None
                here.outer |= dict.fromkeys(node.names, above or self.module)

    def _bind(self, node: ast.AST) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._bind_import(node)
            case ast.Assign():
                for target in node.targets:
                    self._bind_target(target, node, node.value)
            case ast.AnnAssign() if node.value is not None:
                self._bind_target(node.target, node, node.value)
            case ast.NamedExpr():
                self._bind_target(node.target, node, node.value)
            case ast.withitem() if node.optional_vars is not None:
                self._bind_target(node.optional_vars, node, node.context_expr)
            case ast.For() | ast.AsyncFor() | ast.comprehension() | ast.AugAssign():
                self._bind_target(node.target, node, None)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._put(self.of(node), node.name, Binding(node))
            case ast.arg():
                self._put(self.of(node), node.arg, Binding(node))
            case ast.ExceptHandler() | ast.MatchAs() if node.name:
                self._put(self.of(node), node.name, Binding(node))
            case ast.Delete():
                for target in node.targets:
                    self._bind_target(target, node, None)

    def _bind_import(self, node: ast.Import | ast.ImportFrom) -> None:
        scope = self.of(node)
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                dotted = alias.name if alias.asname else name
            elif alias.name == "*":
                self.has_star = True
                continue
            else:
                name = alias.asname or alias.name
                dotted = f"{'.' * node.level}{node.module or ''}.{alias.name}"
            self._put(scope, name, Binding(node, dotted=dotted))

    def _bind_target(self, target: ast.expr, node: ast.AST, value: ast.expr | None) -> None:
        match target:
            case ast.Name():
                self._put(self.of(target), target.id, Binding(node, value))
            case ast.Attribute(value=ast.Name(id=owner), attr=attr):
                scope = self.of(target)
                holder = self._class_of(scope) if owner == "self" else None
                self._put(holder or scope, f"{owner}.{attr}", Binding(node, value))
            case ast.Tuple() | ast.List():
                for index, part in enumerate(target.elts):
                    self._bind_element(part, node, value, index)
            case ast.Starred():
                self._bind_target(target.value, node, None)

    def _bind_element(self, part: ast.expr, node: ast.AST, value: ast.expr | None, index: int) -> None:
        if isinstance(value, (ast.Tuple, ast.List)) and index < len(value.elts):
            self._bind_target(part, node, value.elts[index])
        elif isinstance(part, ast.Name):
            self._put(self.of(part), part.id, Binding(node, value, index if value is not None else None))
        else:
            self._bind_target(part, node, None)

    def _class_of(self, scope: Scope) -> Scope | None:
        at: Scope | None = scope
        while at is not None and not isinstance(at.node, ast.ClassDef):
            at = at.parent
        return at

    def _put(self, scope: Scope, name: str, binding: Binding) -> None:
        scope.outer.get(name, scope).names.setdefault(name, []).append(binding)
