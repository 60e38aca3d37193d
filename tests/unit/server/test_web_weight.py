"""No page asks for more than 200 KB of JavaScript, with all that its scripts import; what is imported on use (`import()`: a dialog, an export) is loaded then."""

import re

import pytest

from shoal.server.web.render import STATIC

TEMPLATES = STATIC.parent / "templates"
LIMIT = 200 << 10
PAGES = sorted(path.name for path in TEMPLATES.glob("*.html") if "{% extends" in path.read_text())


def scripts_of(template: str) -> set[str]:
    """Return the scripts of a page and of the templates it extends or includes."""
    text = (TEMPLATES / template).read_text()
    found = set(re.findall(r"""<script[^>]* src="(?:/static/|\{\{ asset\(')([^"']+)""", text))
    for parent in re.findall(r'{% (?:extends|include) "([^"]+)"', text):
        found |= scripts_of(parent)
    return found


def with_imports(path: str, seen: set[str]) -> set[str]:
    if path in seen:
        return seen
    seen.add(path)
    text = (STATIC / path).read_text()
    for name in re.findall(r"""(?:^import[^"']*|^export[^"']* from )["']\./([\w.-]+)["']""", text, re.MULTILINE):
        with_imports(f"{path.rpartition('/')[0]}/{name}", seen)
    return seen


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_little_javascript(page):
    if not (STATIC / "vendor/htmx.min.js").is_file():
        pytest.skip("needs `python console/vendor.py`")
    loaded: set[str] = set()
    for script in scripts_of(page):
        with_imports(script, loaded)
    assert {"vendor/htmx.min.js", "js/app.js", "js/theme.js"} <= loaded or page == "share.html"
    sizes = {path: (STATIC / path).stat().st_size for path in loaded}
    assert sum(sizes.values()) <= LIMIT, sizes


def test_the_pages_with_charts_and_logs_are_among_them():
    loaded = {page: set().union(*(with_imports(s, set()) for s in scripts_of(page))) for page in PAGES}
    assert "vendor/uPlot.iife.min.js" in loaded["job_metrics.html"] and "js/panel.js" in loaded["job_metrics.html"]
    assert "js/sse.js" in loaded["job_logs.html"]
