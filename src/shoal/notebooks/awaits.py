"""Cells with `await` at their top: IPython runs those in a loop of its own, a script has to say so."""

from __future__ import annotations

import ast
import inspect
import symtable

from shoal.notebooks.lines import inside_strings


def is_async(source: str) -> bool:
    """Raises SyntaxError for what is no Python in either way."""
    code = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def wrap(lines: list[str], number: int) -> tuple[list[str], list[str], list[str]]:
    """Lines to put before the cell's `# %%` line, the cell's own, and after it. Raises SyntaxError where that cannot be done."""
    name = f"_cell_{number}"
    body = [
        line if within or not line.strip() else f"    {line}"
        for line, within in zip(lines, inside_strings(lines), strict=True)
    ]
    head = [f"async def {name}():"]
    text = "\n".join([*head, *body, "    pass"])
    inner = symtable.symtable(text, "<cell>", "exec").get_children()[0]
    shared = sorted(s.get_name() for s in inner.get_symbols() if s.is_local())
    if shared:
        head.append(f"    global {', '.join(shared)}")
    compile("\n".join([*head, *body, "    pass"]), "<cell>", "exec", dont_inherit=True)
    return head, [*body, "    pass"] if not any(x.strip() for x in body) else body, [f"_nb.wait({name}())"]
