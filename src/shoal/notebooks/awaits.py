"""Cells with top-level `await`: IPython runs them in its own event loop; a script needs a function and a loop for them."""

from __future__ import annotations

import ast
import inspect
import symtable

from shoal.notebooks.lines import inside_strings


def is_async(source: str) -> bool:
    """Check whether a cell has top-level `await`. Raises SyntaxError if it is not valid Python even with it."""
    code = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return bool(code.co_flags & inspect.CO_COROUTINE)


def wrap(lines: list[str], number: int) -> tuple[list[str], list[str], list[str]]:
    """Return the lines before the cell's `# %%` line, the cell's own lines, and the lines after it.

    Raises SyntaxError if the cell cannot be put into an async function.
    """
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
