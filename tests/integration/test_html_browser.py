"""The HTML report in a real headless Chromium: every width and theme, no network, accessible, text is text.

What a browser does with a page cannot be read off the page: whether the script draws, whether the policy
refuses something that the page needs, whether anything is wider than a phone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from megatrace.reports import ReportOptions
from megatrace.reports.html import render
from tests.integration.browser import DRAWN, HEIGHT, SETTLE, Open, overflow, undisturbed
from tests.unit.html_cases import PAYLOADS, PICTURED, poisoned, slow_window

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

OPTIONS = ReportOptions(generated_at=1_796_004_780_000_000_000, command="megatrace diagnose logs/")


@pytest.mark.parametrize("name", PICTURED)
def test_it_opens_and_draws_at_every_width_in_both_themes(name: str, opened: Open) -> None:
    html = render(PICTURED[name](), OPTIONS)
    with undisturbed(opened(html, 390, "light")) as page:
        for width, theme in product((390, 1280, 2560), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            page.evaluate(SETTLE)
            assert overflow(page) <= 0, (width, theme)
            colours = page.evaluate(DRAWN)
            assert len(colours) == html.count('class="picture"')
            assert all(count > 3 for count in colours), (width, theme, colours)
            dark = page.evaluate("() => document.documentElement.hasAttribute('data-dark')")
            assert dark is (theme == "dark")


@pytest.mark.parametrize("name", PICTURED)
def test_it_is_accessible(name: str, opened: Open) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = opened(render(PICTURED[name](), OPTIONS)).page
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    # Of all rules only that of contrast depends on the theme.
    for theme, rules in (("light", None), ("dark", {"runOnly": ["color-contrast"]})):
        page.select_option("#theme", theme)
        page.evaluate(SETTLE)
        found = axe.Axe().run(page, options=rules).response["violations"]
        assert [(item["id"], [node["html"] for node in item["nodes"]]) for item in found] == [], theme


@pytest.mark.parametrize(("name", "lang"), [*((name, "en") for name in PICTURED), ("slow_window", "zh")])
def test_markup_in_every_string_stays_text(name: str, lang: str, opened: Open) -> None:
    options = replace(OPTIONS, lang=lang, command=" ".join(PAYLOADS))
    with undisturbed(opened(render(poisoned(PICTURED[name]()), options))) as page:
        _point_everywhere(page)
        assert page.evaluate("() => window.stolen") is None
        assert (
            page.evaluate("() => document.images.length + document.querySelectorAll('[onfocus]').length") == 0
        )
        assert page.evaluate("() => document.scripts.length") == 3
        assert PAYLOADS[0] in page.inner_text("body")


def _point_everywhere(page: Page) -> None:
    """The pointer into every picture: what it says there comes from the diagnosis, too."""
    for stack in page.query_selector_all(".stack"):
        stack.scroll_into_view_if_needed()
        box = stack.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


class TestUse:
    """What somebody does with the pictures."""

    @pytest.fixture
    def page(self, opened: Open) -> Iterator[Page]:
        with undisturbed(opened(render(slow_window(), OPTIONS))) as page:
            yield page

    def test_a_rank_is_found_and_pinned(self, page: Page) -> None:
        page.fill("#figure-heat input", "3")
        page.press("#figure-heat input", "Enter")
        said = page.inner_text("#figure-heat .readout")
        assert "pinned: rank 3" in said
        assert "stage 1 · iteration 21" in said
        page.fill("#figure-heat input", "99")
        page.press("#figure-heat input", "Enter")
        assert "99: no such rank" in page.inner_text("#figure-heat .readout")

    def test_the_keyboard_walks_pins_and_lets_go(self, page: Page) -> None:
        page.focus("#figure-iterations .stack")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#figure-iterations .tip").startswith("iteration 21\n3.2")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        assert "pinned: iteration 20" in page.inner_text("#figure-iterations .readout")
        assert "iteration 20" in page.inner_text("#status")
        page.keyboard.press("Escape")
        assert "pinned" not in page.inner_text("#figure-iterations .readout")

    def test_zooming_one_picture_of_iterations_zooms_the_other(self, page: Page) -> None:
        picture = "() => document.querySelector('#figure-heat .stack canvas').toDataURL()"
        whole = page.evaluate(picture)
        page.click("#figure-iterations button[aria-label='Zoom in']")
        page.wait_for_function(f"(whole) => ({picture})() !== whole", arg=whole)
        page.click("#figure-heat button[aria-label='Whole picture']")
        page.wait_for_function(f"(whole) => ({picture})() === whole", arg=whole)

    def test_the_heat_map_says_what_was_put_in(self, page: Page) -> None:
        page.focus("#figure-heat .stack")
        page.keyboard.press("ArrowDown")
        said = page.inner_text("#figure-heat .tip")
        assert said.startswith("rank 2\nstage 1 · iteration 21\nwork 2.5")
        assert "2.4× of its stage's median" in said or "2.5× of its stage's median" in said

    def test_the_theme_is_chosen_and_the_pictures_follow(self, page: Page) -> None:
        picture = "() => document.querySelector('#figure-gantt .stack canvas').toDataURL()"
        light = page.evaluate(picture)
        page.select_option("#theme", "dark")
        page.wait_for_function(f"(light) => ({picture})() !== light", arg=light)
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(13, 16, 20)"

    def test_on_paper_it_is_light_and_has_no_buttons(self, page: Page) -> None:
        page.select_option("#theme", "dark")
        page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.evaluate("() => document.documentElement.hasAttribute('data-dark')") is False
        assert not page.is_visible("#print")
        assert page.is_visible("#figure-gantt .stack")

    def test_a_command_is_copied(self, page: Page) -> None:
        button = page.locator("button.copy").first
        button.click()
        page.wait_for_function("() => document.querySelector('button.copy').textContent === 'Copied'")


def test_without_its_script_everything_but_the_pictures_can_be_read(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(slow_window(), OPTIONS), encoding="utf-8")
    page = browser.new_page(java_script_enabled=False)
    page.goto(path.as_uri())
    text = page.inner_text("body")
    page.close()
    for words in ("rank 2", "Look at the clocks", "The pictures need JavaScript", "1,043", "4.51 ms later"):
        assert words in text
