"""The page of a reproduced experiment as a reader meets it in a browser."""

import re
import shutil

import numpy as np
import pytest

from cobilevel.report import write_page
from cobilevel.report.page import number
from summaries import SIZES, SOLVERS, claims, cleaning, inverse, policies

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip
PLOTS = ("#policy-chart", "#error-chart")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pip install playwright to test the page in a browser"
    )
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("install Chromium (apt-get install chromium) to test the page in a browser")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    summaries = {"inverse": inverse(), "cleaning": cleaning()}
    return {kind: write_page(summary, claims(), folder / f"{kind}.html") for kind, summary in summaries.items()}


@pytest.fixture
def visit(browser, written):
    """Opens a page; in the end nothing was logged as an error and nothing asked for but the file."""
    troubles, asked, contexts = [], [], []

    def opened(kind="inverse", width=1280, **options):
        contexts.append(
            browser.new_context(viewport={"width": width, "height": 900}, **options, reduced_motion="reduce")
        )
        tab = contexts[-1].new_page()
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("console", lambda line: troubles.append(line.text) if line.type in ("error", "warning") else None)
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(written[kind].as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert not troubles
    assert all(url.startswith(("file:", "data:")) for url in asked)


def pictures(tab, *hosts):
    """The path data drawn in each host."""
    read = "host => [...document.querySelectorAll(host + ' path.curve')].map(path => path.getAttribute('d')).join('|')"
    return [tab.evaluate(read, host) for host in hosts]


STICKING_OUT = """() => [...document.body.querySelectorAll('*')]
    .filter(node => !node.closest('.scroll > *, svg > *, script, noscript, [hidden]'))
    .filter(node => node.getBoundingClientRect().right > innerWidth + 0.5 || node.getBoundingClientRect().left < -0.5)
    .map(node => node.outerHTML.slice(0, 80))"""
DRAWN_TO_SIZE = """() => [...document.querySelectorAll('.chart')]
    .every(host => host.querySelector('svg').viewBox.baseVal.width === Math.round(host.clientWidth))"""


@pytest.mark.parametrize("kind", ["inverse", "cleaning"])
def test_nothing_sticks_out(visit, kind):
    tab = visit(kind)
    for width in (1280, 768, 390, 320):
        tab.set_viewport_size({"width": width, "height": 900})
        for _ in range(100):  # the page allows no eval, so the browser cannot wait for us
            if tab.evaluate(DRAWN_TO_SIZE):
                break
            tab.wait_for_timeout(20)
        assert tab.evaluate(DRAWN_TO_SIZE)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate(STICKING_OUT) == []
    assert tab.evaluate("window.hostile") is None


def test_the_first_minute(visit):
    tab = visit()
    assert [text.split()[1] for text in tab.locator(".count").all_inner_texts()] == ["11", "0", "0", "2", "3"]
    failing = tab.locator(".claims tr.fails")
    assert failing.count() == 2
    assert "✗ fails" in failing.first.inner_text()
    failing.first.locator("summary").click()
    assert "ten times the samples" in failing.first.inner_text()
    tab.locator(".count.fails a").last.click()
    assert tab.evaluate("location.hash") == f"#{failing.last.get_attribute('id')}"
    folded = tab.locator(".claims details:not([open])").first
    assert not folded.locator("p").first.is_visible()


def test_missing_values_are_gaps(visit):
    tab = visit()
    moves = tab.eval_on_selector_all(
        '[data-panel="1"] path.curve', "paths => paths.map(path => path.getAttribute('d').split('M').length - 1)"
    )
    assert moves == [1, 1, 2, 1]
    assert not any("NaN" in path for path in pictures(tab, ".chart"))
    assert "NaN" not in pictures(visit("cleaning"), ".chart")[0]


def test_the_legend_switches_a_series_in_every_panel(visit):
    tab = visit()
    button = tab.get_by_role("button", name="R_Fourier")
    curves = lambda: [tab.locator(f'[data-panel="{k}"] path.curve').count() for k in (0, 1)]
    assert curves() == [4, 4]
    button.click()
    assert curves() == [3, 3]
    assert button.get_attribute("aria-pressed") == "false"
    for pressed in tab.locator(".legend button[aria-pressed=true]").element_handles():
        pressed.click()
    assert tab.get_by_text("nothing selected").count() == 2
    button.click()
    assert curves() == [1, 1]


def test_values_can_be_read_by_pointer_and_by_keys(visit):
    tab = visit()
    chart, tip = tab.locator('[data-panel="0"] svg'), tab.locator('[data-panel="0"] .tip')
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    for share in np.linspace(0.1, 0.9, 9):
        tab.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + box["height"] * share)
        if tip.is_visible():
            break
    assert re.search(r"basis size N = 50: 1\.\d+ \(1\.\d+ to 1\.\d+\)", tip.inner_text())
    tab.mouse.move(0, 0)
    assert not tip.is_visible()
    tab.locator("nav a").last.focus()
    tab.keyboard.press("Tab")
    assert tip.inner_text().startswith("R_Chebyshev")
    tab.keyboard.press("ArrowRight")
    assert "basis size N = 5:" in tip.inner_text()
    tab.keyboard.press("ArrowDown")
    assert tip.inner_text().startswith("R_Fourier")


def test_every_control_changes_the_picture(visit):
    tab = visit()
    words = tab.locator("#policy-words")
    for control, value in (("basis", "stocBiO"), ("N", "20"), ("solver", "Newton")):
        before, said = pictures(tab, *PLOTS), words.inner_text()
        tab.select_option(f"#pick-{control}", value)
        assert all(new != old for new, old in zip(pictures(tab, *PLOTS), before, strict=True)), control
        assert words.inner_text() != said
    entry = next(e for e in policies()["entries"] if (e["basis"], e["N"], e["solver"]) == ("stocBiO", 20, "Newton"))
    assert number(float(np.nanmax(entry["error"]))) in words.inner_text()
    assert number(float(np.sqrt(np.nanmean(np.square(entry["error"]))))) in words.inner_text()
    for k in (0, 1):
        before = pictures(tab, PLOTS[0])
        tab.locator("#components input").nth(k).click()
        assert pictures(tab, PLOTS[0]) != before
        tab.locator("#components input").nth(k).click()
        assert pictures(tab, PLOTS[0]) == before


def test_only_what_exists_is_offered(visit):
    tab = visit()
    offered = lambda key: tab.locator(f"#pick-{key} option").all_inner_texts()
    tab.select_option("#pick-solver", "Newton")
    tab.select_option("#pick-N", "50")
    tab.select_option("#pick-basis", "R_monomial")
    assert offered("N") == [str(size) for size in SIZES]
    assert offered("solver") == ["StocBiO"]
    assert tab.locator("#policy-words").inner_text().startswith("R_monomial, N = 50, StocBiO")
    tab.select_option("#pick-N", "20")
    assert offered("solver") == list(SOLVERS)


def test_the_keyboard_reaches_every_control(visit):
    tab = visit()
    wanted = set(
        tab.eval_on_selector_all(
            "select, input, button, summary", "nodes => nodes.map((n, k) => (n.dataset.k = k, `${k}`))"
        )
    )
    reached = set()
    for _ in range(len(wanted) + 40):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.dataset.k"))
    assert wanted <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_print(visit, scheme):
    tab = visit(color_scheme=scheme)
    background = lambda: tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background() == "rgb(255, 255, 255)") == (scheme == "light")
    tab.emulate_media(media="print")
    assert background() == "rgb(255, 255, 255)"
    for control in tab.locator("nav, select, input").all():
        assert not control.is_visible()
    assert tab.locator("#components").inner_text().split("\n") == ["edge 1", "edge 2"]  # the key to the colours stays
    for shown in (*PLOTS, '[data-panel="1"]'):
        assert tab.locator(f"{shown} path.curve").first.is_visible()
    assert tab.locator(".claims").is_visible()
    assert tab.locator("#tables table").is_visible()
    assert "R_Chebyshev, N = 3" in tab.locator("#policy-words").inner_text()
