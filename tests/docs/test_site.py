"""The site as built by `make docs`: nothing from elsewhere, no dead link, every page whole in a browser."""

import html.parser
import os
import shutil
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("COBILEVEL_SITE", ROOT / "site"))
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
pytestmark = [pytest.mark.docs, pytest.mark.skipif(not SITE.exists(), reason="make docs builds the site")]


class Page(html.parser.HTMLParser):
    """What a page has: anchors, links, what it loads, pictures without words."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads, self.wordless = set(), [], [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        self.ids |= {has[key] for key in ("id", "name") if has.get(key)}
        if tag == "a" and has.get("href"):
            self.links.append(has["href"])
        if tag in ("script", "img", "iframe", "source") and has.get("src"):
            self.loads.append(has["src"])
        if (
            tag == "link"
            and has.get("href")
            and has.get("rel") not in ("canonical", "search", "next", "prev", "index", "genindex")
        ):
            self.loads.append(has["href"])
        if tag == "img" and not (has.get("alt") or "").strip() and has.get("role") != "presentation":
            self.wordless.append(has.get("src"))


@cache
def parsed(path):
    return Page(path)


def pages():
    return sorted(SITE.rglob("*.html"))


def test_nothing_is_loaded_from_elsewhere():
    for page in pages():
        far = [url for url in parsed(page).loads if url.startswith(("http:", "https:", "//"))]
        assert not far, page
    for style in SITE.rglob("*.css"):
        assert "url(http" not in style.read_text().replace('"', "").replace("'", ""), style
        assert "@import" not in style.read_text() or "http" not in style.read_text().partition("@import")[2][:60], style


def test_no_link_is_dead():
    dead = []
    for page in pages():
        for url in parsed(page).links + parsed(page).loads:
            path, anchor = urldefrag(url)
            if path.startswith(("http:", "https:", "mailto:", "data:", "javascript:")):
                continue
            to = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            if not to.exists() or (anchor and to.suffix == ".html" and unquote(anchor) not in parsed(to).ids):
                dead.append(f"{page.relative_to(SITE)}: {url}")
    assert not [line for line in dead if "results/report.html: #" not in line]


def test_pictures_have_words():
    assert not {str(page.relative_to(SITE)): parsed(page).wordless for page in pages() if parsed(page).wordless}


def test_every_public_name_has_its_page():
    import sys

    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    from public_names import public_names

    for name in public_names():
        page = SITE / "reference" / f"{name}.html"
        assert page.exists(), name
        assert "cobilevel" + name.removeprefix("cb") in parsed(page).ids, name


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("install Chromium (apt-get install chromium) to open the site in a browser")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


WIDE = """() => document.documentElement.scrollWidth - document.documentElement.clientWidth"""


def test_pages_in_a_browser(browser):
    """At two widths, light and dark: no error in the console, nothing asked for but files, no sideways scroll."""
    context = browser.new_context(viewport={"width": 390, "height": 900}, color_scheme="dark", reduced_motion="reduce")
    tab, troubles = context.new_page(), []
    tab.on("pageerror", lambda error: troubles.append(f"{tab.url}: {error}"))
    tab.on("console", lambda line: troubles.append(f"{tab.url}: {line.text}") if line.type == "error" else None)
    tab.on("request", lambda r: troubles.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
    for page in pages():
        if "_modules" in page.parts and page.stem != "front_door":
            continue  # listings of the source, all alike
        tab.set_viewport_size({"width": 390, "height": 900})
        tab.emulate_media(color_scheme="dark")
        tab.goto(page.as_uri(), wait_until="load")
        if tab.locator("div.math, span.math").count():
            tab.wait_for_function("() => document.querySelector('mjx-container')", timeout=20_000)
        colours = []
        for width, scheme in ((390, "dark"), (1280, "dark"), (1280, "light"), (390, "light")):
            tab.set_viewport_size({"width": width, "height": 900})
            tab.emulate_media(color_scheme=scheme)
            colours.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
            if tab.evaluate(WIDE) > 0:
                troubles.append(f"{page.relative_to(SITE)}: {tab.evaluate(WIDE)} pixels too wide at {width}")
        if colours[0] == colours[3]:
            troubles.append(f"{page.relative_to(SITE)}: the same background, light and dark")
    context.close()
    assert not troubles


def test_search_finds_a_name(browser):
    tab = browser.new_page()
    tab.goto((SITE / "search.html").as_uri() + "?q=certify")
    tab.wait_for_selector("#search-results li", timeout=20_000)
    assert "certify" in tab.locator("#search-results").inner_text()
