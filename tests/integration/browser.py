"""A headless Chromium for the tests of pages: opens them at a width and in a theme, hears what they complain
of.

What a browser does with a page cannot be read off the page: whether the script draws, whether the policy
refuses something that the page needs, whether anything is wider than a phone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HEIGHT = 900
DRAWN = """() => [...document.querySelectorAll('.stack')].map((stack) => {
    const canvas = stack.querySelector('canvas');
    const copy = new OffscreenCanvas(canvas.width, canvas.height)
        .getContext('2d', { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const image = copy.getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(image.data.buffer)).size;
})"""
"""Different colours in each picture: one or two are an empty one."""
SETTLE = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
    () => requestAnimationFrame(done))))"""
"""A change of size is seen in the next frame, and drawn in the one after."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium; the test skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield launched
        launched.close()


@dataclass
class Opened:
    """A page in the browser, and what it complained about or asked for."""

    page: Page
    complaints: list[str]
    requests: list[str]


Theme = Literal["light", "dark"]
Open = Callable[..., "Opened"]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens a page of some text at a width and in a theme, waits until it is drawn."""
    pages: list[Page] = []

    def open_page(html: str, width: int = 1280, theme: Theme = "light") -> Opened:
        path = tmp_path / "report.html"
        path.write_text(html, encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=theme)
        pages.append(page)
        result = Opened(page, [], [])
        page.on("console", lambda message: result.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: result.complaints.append(str(error)))
        page.on("request", lambda request: result.requests.append(request.url))
        page.goto(path.as_uri())
        if 'class="picture"' in html:
            page.wait_for_selector("html[data-drawn]")
        page.evaluate(SETTLE)
        return result

    yield open_page
    for page in pages:
        page.close()


@contextmanager
def undisturbed(result: Opened) -> Iterator[Page]:
    """The page; afterwards nothing was complained about, and nothing but the file was asked for."""
    yield result.page
    assert result.complaints == []
    assert [url for url in result.requests if not url.endswith("/report.html")] == []


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than the window."""
    value = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return int(value)
