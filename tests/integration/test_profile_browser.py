"""The page of a profile in a real headless Chromium: widths and themes, no network, accessible, usable."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from megatrace.reports import ReportOptions
from megatrace.reports.profile_html import render
from tests.integration.browser import DRAWN, HEIGHT, SETTLE, Open, overflow, undisturbed
from tests.unit.html_cases import PAYLOADS
from tests.unit.profile_page_cases import everything, poisoned

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
OPTIONS = ReportOptions(generated_at=1_796_004_780_000_000_000, command="megatrace profile traces/")


def test_it_opens_and_draws_at_every_width_in_both_themes(opened: Open) -> None:
    html = render(everything(), OPTIONS)
    with undisturbed(opened(html, 390, "light")) as page:
        for width, theme in product((390, 1280, 2560), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            page.evaluate(SETTLE)
            assert overflow(page) <= 0, (width, theme)
            colours = page.evaluate(DRAWN)
            assert len(colours) == 3
            assert all(count > 3 for count in colours), (width, theme, colours)


def test_it_is_accessible(opened: Open) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = opened(render(everything(), OPTIONS)).page
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for theme, rules in (("light", None), ("dark", {"runOnly": ["color-contrast"]})):
        page.select_option("#theme", theme)
        page.evaluate(SETTLE)
        found = axe.Axe().run(page, options=rules).response["violations"]
        assert [(item["id"], [node["html"] for node in item["nodes"]]) for item in found] == [], theme


def test_the_keyboard_walks_through_every_picture(opened: Open) -> None:
    with undisturbed(opened(render(everything(), OPTIONS))) as page:
        assert _said(page, "path", "ArrowRight").startswith("host · aten::mm\n30 ms")
        assert _said(page, "path", "ArrowRight").startswith("launch · gemm")
        assert _said(page, "flame", "ArrowRight").startswith("all\n100 ms")
        assert _said(page, "flame", "ArrowDown").startswith("ProfilerStep#5")
        assert "1 MiB" in _said(page, "scatter", "ArrowRight")
        assert "bus bandwidth 210 GB/s" in _said(page, "scatter", "ArrowRight")
        page.select_option("#figure-path select", "1")
        assert _said(page, "path", "ArrowRight").startswith("host")


def _said(page: Page, figure: str, key: str) -> str:
    page.focus(f"#figure-{figure} .stack")
    page.keyboard.press(key)
    return page.inner_text(f"#figure-{figure} .tip")


def test_markup_in_every_string_stays_text(opened: Open) -> None:
    html = render(poisoned(everything(), tuple(PAYLOADS)), OPTIONS)
    with undisturbed(opened(html)) as page:
        for stack in page.query_selector_all(".stack"):
            stack.scroll_into_view_if_needed()
            box = stack.bounding_box()
            assert box is not None
            page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
        assert page.evaluate("() => window.stolen") is None
        assert page.evaluate("() => document.images.length") == 0
        assert page.evaluate("() => document.scripts.length") == 3
