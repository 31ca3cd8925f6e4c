"""The page and the figures of a reproduced experiment: as files, and as a reader meets them in a browser."""

import json
import math
import re
import shutil

import numpy as np
import pytest

from cobilevel.report.page import number, page
from cobilevel.report.panels import label_styles, panel_figures

FAMILIES, SIZES, SOLVERS = ("Chebyshev", "Fourier", "Monomial", "Partition"), (3, 5, 10, 20, 50), ("StocBiO", "Newton")
RATES = {"Chebyshev": 1.6, "Fourier": 1.4, "Monomial": 1.3, "Partition": 0.9}
HOSTILE = "</script><script>window.hostile = 1</script><!-- \u2028 ${1} $title & \"quotes\" 'too'"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip
PLOTS = ("#policy-chart", "#error-chart")


def interval(x, y, above=0.0, **rest):
    """A series with intervals in proportion to its height above a level."""
    y = np.asarray(y, dtype=float)
    low, high = ((above + share * (y - above)).tolist() for share in (0.8, 1.3))
    return {"x": list(x), "y": y.tolist(), "low": low, "high": high, **rest}


def panel(name, figure, title, series, xlabel, ylabel, xscale="log", yscale="log", lines=()):
    return {
        "id": name, "figure": figure, "title": title, "xlabel": xlabel, "ylabel": ylabel, "xscale": xscale,
        "yscale": yscale, "note": "Mean over 20 instances; bands are 95 % intervals of the mean.",
        "series": series, "lines": list(lines),
    }  # fmt: skip


def policies():
    """Flows on two roads, the policy off by a ripple that shrinks with the size; Monomial has no Newton at 50."""
    demand = np.linspace(0.0, 1.0, 201)
    exact = np.stack([np.maximum(demand - 0.16, 0) ** 0.8 / 2, demand - np.maximum(demand - 0.16, 0) ** 0.8 / 2])
    entries = []
    for k, (basis, size, solver) in enumerate((b, n, s) for b in FAMILIES for n in SIZES for s in SOLVERS):
        if (basis, size, solver) == ("Monomial", 50, "Newton"):
            continue
        ripple = 0.2 * size ** -RATES[basis] * np.cos((2 * size + k) * demand + np.array([[0.0], [1.0]]))
        error = np.linalg.norm(ripple, axis=0)
        error[[7, 8]] = np.nan, 0.0
        entry = {"basis": basis, "N": size, "solver": solver, "error": error.tolist()}
        entries.append(entry | {"policy": (exact + ripple).tolist(), "exact": exact.tolist()})
    context = {"label": "demand", "values": demand.tolist()}
    return {"context": context, "quantity": "flow", "components": ["edge 1", "edge 2"], "entries": entries}


def inverse():
    """Errors against the size of the basis; one run went wrong and left a gap."""
    pairs = [(f, s) for f in FAMILIES for s in SOLVERS]
    size = np.array(SIZES)
    drop = lambda f, s, c: c * size ** -RATES[f] * (1.4 if s == "StocBiO" else 1.0) + c * 1e-3
    loss = [interval(SIZES, 1 + drop(f, s, 0.6), 1.0, label=f, solver=s) for f, s in pairs]
    error = [interval(SIZES, drop(f, s, 0.3), label=f, solver=s) for f, s in pairs]
    error[4]["y"][2] = error[4]["low"][2] = math.nan
    error[5]["low"][4] = -1e-3
    rows = [
        [f, n, s, 1 + 0.6 / n, 0.3 * n ** -RATES[f], 12.5 * n, None] for f in FAMILIES for n in SIZES for s in SOLVERS
    ]
    return {
        "experiment": "inverse", "budget": "quick", "title": "Road capacities inferred from observed flows",
        "lead": "Twenty instances of the two-road network, four families of bases at five sizes, each solved by "
        "StocBiO and by Newton's method, and judged with exact flows on held-out samples.",
        "about": [["Instances", "20, seeds 0 to 19"], ["Samples", "1000 for training, 4000 for testing"],
                  ["Machine", "2 cores, no accelerator"], ["Wall time", "6 min 12 s"], ["Versions", "jax 0.10.2"]],
        "panels": [
            panel("loss", "Figure 1", "Test loss against the size of the basis", loss, "basis size N", "loss / F_ref",
                  lines=[{"label": "F_ref", "y": 1.0}]),
            panel("error", "Figure 1", "Error of the policy", error, "basis size N", "mean squared error of the flows"),
        ],
        "tables": [{"id": "all", "title": "Every run", "rows": rows, "note": "Means over the instances.",
                    "columns": ["basis", "N", "solver", "loss over F_ref", "policy error", "ms", "capacity error"]}],
        "policies": policies(),
    }  # fmt: skip


def cleaning():
    """Curves over time, labels that name a size, no policies, hostile words everywhere."""
    seconds = np.linspace(0.01, 30, 400)
    labels = ("Chebyshev(5)", "Chebyshev(20)", "Fourier(10)", "one weight for all")
    falls = [
        interval(seconds, 0.3 + 0.5 * np.exp(-seconds / (3 + k)), label=w, solver="StocBiO")
        for k, w in enumerate(labels)
    ]
    falls.append(interval([1, 2], [math.inf, math.nan], label=HOSTILE, solver=""))
    base = inverse() | {"experiment": "cleaning", "title": HOSTILE, "lead": HOSTILE, "policies": None}
    base["panels"] = [
        panel(k, f"{k} {HOSTILE}", HOSTILE, falls, "seconds", "loss $x_$", k, "linear") for k in ("linear", "log")
    ]
    base["tables"] = [{"id": "t", "title": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE], [None]], "note": HOSTILE}]
    return base


def claims():
    """Four statements on each family; two fail, three were not tested."""
    statements = (
        ("the loss on held-out samples at N = 10 is within half a per cent of the reference", 1.0032, "at most 1.005"),
        ("the error of the policy falls with every larger basis", {"N = 10": 0.0123, "N = 50": 2.3e-4}, "decreasing"),
        ("StocBiO and Newton's method end at the same capacities", "0.41 to 0.47 per cent", "within 1 per cent"),
        ("fifty functions are no worse than twenty, in every instance", 20, "20 of 20 instances"),
    )
    made = []
    for family in FAMILIES:
        for text, measured, threshold in statements:
            k = len(made)
            verdict = {6: "fails", 11: "fails", 3: "not tested", 7: "not tested", 15: "not tested"}.get(k, "holds")
            claim = {"id": f"I{k + 1}", "claim": f"{family}: {text}.", "verdict": verdict, "threshold": threshold}
            claim["measured"] = None if verdict == "not tested" else measured
            claim["how"] = "The mean over the instances, the flows solved exactly at each context."
            if verdict == "fails":
                claim["why"] = "The noise at this budget exceeds the difference; ten times the samples would show it."
            made.append(claim)
    return made


def embedded(path):
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S
    )
    return json.loads(found, parse_constant=pytest.fail)


def test_the_page_carries_its_data(tmp_path):
    path = page(inverse(), claims(), tmp_path / "deep" / "report.html")
    data = embedded(path)
    assert data["claims"] == claims()
    assert data["summary"]["panels"][1]["series"][4]["y"][2] is None  # NaN is a gap
    assert data["summary"]["panels"][0] == inverse()["panels"][0]
    assert list(path.parent.iterdir()) == [path]  # nothing left beside it
    assert not re.search(r"(src|href)=[\"']?(https?:|//)|@import|url\(http", path.read_text(encoding="utf-8"))


def test_words_cannot_become_markup(tmp_path):
    hostile = [claims()[0] | {"id": "<i>", "claim": HOSTILE, "measured": {HOSTILE: [HOSTILE, np.float32(0.5)]}}]
    path = page(cleaning(), hostile, tmp_path / "report.html")
    assert embedded(path)["summary"]["title"] == HOSTILE
    assert embedded(path)["claims"][0]["measured"] == {HOSTILE: [HOSTILE, 0.5]}
    text = path.read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 2
    assert "<!-- " not in text
    assert "policy-chart" not in text.split('id="data"')[0]  # no policies, no explorer


def test_an_unfinished_page_replaces_nothing(tmp_path):
    path = page(inverse(), claims(), tmp_path / "report.html")
    before = path.read_bytes()
    with pytest.raises(TypeError):
        page(inverse() | {"about": [["a", object()]]}, claims(), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("part", ["verdict", "series", "row"])
def test_refused(part, tmp_path):
    summary, made = inverse(), claims()
    if part == "verdict":
        made[3]["verdict"] = "perhaps"
    elif part == "series":
        summary["panels"][0]["series"][2]["low"].pop()
    else:
        summary["tables"][0]["rows"][1].pop()
    with pytest.raises(ValueError, match={"verdict": "perhaps", "series": "lengths differ", "row": "6 cells"}[part]):
        page(summary, made, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0, "0"), (20.0, "20"), (1.00321, "1.003"), (0.5, "0.5"), (-0.25, "\u22120.25"), (9999.9, "10000"),
     (123456.7, "1.23\u00d710⁵"), (2.3e-7, "2.3\u00d710⁻⁷"), (None, "\u2013"), (math.nan, "\u2013")],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


def test_numbers_in_columns_keep_their_zeros():
    values = (1.0, 0.5, 0.0, 125.0, 12345.6, 2.3e-7, 20)
    assert [number(value, aligned=True) for value in values] == [
        "1.000", "0.5000", "0.000", "125.0", "12346", "2.30\u00d710⁻⁷", "20"
    ]  # fmt: skip


@pytest.mark.parametrize(("summary", "figures"), [(inverse(), 1), (cleaning(), 2), ({"panels": []}, 0)])
def test_figures_are_written(summary, figures, tmp_path):
    paths = panel_figures(summary, tmp_path / "figures")
    assert len(paths) == len(set(paths)) == 2 * figures
    assert sorted(tmp_path.rglob("*.*")) == sorted(paths)
    for path in paths:
        assert path.read_bytes().startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix])


def test_labels_of_one_family_are_told_apart():
    styles = label_styles(cleaning())
    assert styles["Chebyshev(5)"] == label_styles(inverse())["Chebyshev"]
    assert len({style["colour"] for style in styles.values()}) == len(styles)


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
    return {kind: page(summary, claims(), folder / f"{kind}.html") for kind, summary in summaries.items()}


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
    assert [text.split()[1] for text in tab.locator(".count").all_inner_texts()] == ["11", "2", "3"]
    failing = tab.locator(".claims tr.fails")
    assert failing.count() == 2
    assert "✗ fails" in failing.first.inner_text()
    assert "ten times the samples" in failing.first.inner_text()  # the reason is open from the start
    tab.locator(".count.fails a").last.click()
    assert tab.evaluate("location.hash") == f"#{failing.last.get_attribute('id')}"
    folded = tab.locator(".claims details:not([open])").first
    assert not folded.locator("p").is_visible()


def test_missing_values_are_gaps(visit):
    tab = visit()
    moves = tab.eval_on_selector_all(
        '[data-panel="1"] path.curve', "paths => paths.map(path => path.getAttribute('d').split('M').length - 1)"
    )
    assert moves == [1, 1, 1, 1, 2, 1, 1, 1]
    assert not any("NaN" in path for path in pictures(tab, ".chart"))
    assert "NaN" not in pictures(visit("cleaning"), ".chart")[0]


def test_the_legend_switches_a_series_in_every_panel(visit):
    tab = visit()
    button = tab.get_by_role("button", name="Fourier, Newton")
    curves = lambda: [tab.locator(f'[data-panel="{k}"] path.curve').count() for k in (0, 1)]
    assert curves() == [8, 8]
    button.click()
    assert curves() == [7, 7]
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
    tab.locator(".claims summary").last.focus()
    tab.keyboard.press("Tab")
    assert tip.inner_text().startswith("Chebyshev, StocBiO")
    tab.keyboard.press("ArrowRight")
    assert "basis size N = 5:" in tip.inner_text()
    tab.keyboard.press("ArrowDown")
    assert tip.inner_text().startswith("Chebyshev, Newton")


def test_every_control_changes_the_picture(visit):
    tab = visit()
    words = tab.locator("#policy-words")
    for control, value in (("basis", "Partition"), ("N", "20"), ("solver", "Newton")):
        before, said = pictures(tab, *PLOTS), words.inner_text()
        tab.select_option(f"#pick-{control}", value)
        assert all(new != old for new, old in zip(pictures(tab, *PLOTS), before, strict=True)), control
        assert words.inner_text() != said
    entry = next(e for e in policies()["entries"] if (e["basis"], e["N"], e["solver"]) == ("Partition", 20, "Newton"))
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
    tab.select_option("#pick-basis", "Monomial")
    assert offered("N") == [str(size) for size in SIZES]
    assert offered("solver") == ["StocBiO"]
    assert tab.locator("#policy-words").inner_text().startswith("Monomial, N = 50, StocBiO")
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
    assert "Chebyshev, N = 3" in tab.locator("#policy-words").inner_text()
