"""A picture of every page, light and dark, wide and as a phone shows it; and nothing sticks out of any of them."""

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright")
from pages import pages, settled
from watched import PHONE, WIDE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT = "[...document.querySelectorAll('main .scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"


@pytest.mark.parametrize("width", ["wide", "phone"])
def test_every_page_has_its_picture_taken(looking, filled, shots, width):
    page, sticks_out = looking.page, {}
    page.set_viewport_size(WIDE if width == "wide" else PHONE)
    for name, (_, address) in pages(filled).items():
        settled(page, filled.base + address)
        if over := page.evaluate(OVERFLOW) + (page.evaluate(CUT) if width == "wide" else 0):
            sticks_out[name] = over
        looking.shoot(f"{name}-{width}", whole=width == "phone")
        assert (shots / f"{name}-{width}-dark.png").stat().st_size > 5_000
    assert not sticks_out
    assert looking.problems == []
