"""The pages as sources: links lead somewhere, pictures say what they show, words are plain."""

import re
from pathlib import Path

import pytest

import cobilevel as cb

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("gallery/*.md"), *DOCS.glob("notebooks/*.md")]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
# English that a reader has to think about, and what to write
DIALECT = {
    r"\bbears? (it|them|that|this|such)\b": "supports",
    r"\bhard by\b": "near",
    r"\bcome by\b|\bcomes by\b": "obtained",
    r"\bthe affair of\b": "the job of",
    r"\bgive away\b": "lose",
    r"\bof a store of before\b": "of an earlier version",
    r"\bin vain\b": "without use",
}


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.S))


def anchors(path):
    """The anchors of a page's headings, as viewers make them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_pictures_say_what_they_show(page):
    for picture, words, target in LINK.findall(without_code(page.read_text())):
        assert words.strip() or not picture, f"{target}: no alternative text"
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        assert to.exists(), target
        if anchor:
            assert anchor in anchors(to), target


def test_every_page_is_on_the_site():
    trees = re.findall(r"```\{toctree\}(.*?)```", (DOCS / "index.md").read_text(), re.S)
    listed = set(re.findall(r"^([\w/]+)$", "\n".join(trees), re.M))
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES if page.is_relative_to(DOCS)}
    gallery = {page for page in pages if page.startswith("gallery/")} - {"gallery/index"}
    assert pages - gallery - {"index"} == listed - {"reference/index"}


def test_every_gallery_problem_has_a_page():
    pages = {page.stem for page in (DOCS / "gallery").glob("*.md")}
    assert {*cb.gallery.ENTRIES, "network", "cleaning"} <= pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_words_are_plain(page):
    text = without_code(page.read_text())
    assert not [(found[0], better) for dialect, better in DIALECT.items() for found in re.finditer(dialect, text)]


def test_one_version():
    assert f"version: {cb.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version {cb.__version__}" in (ROOT / "README.md").read_text()
    assert f"## {cb.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_is_short():
    """Two screens, the example's code and its output counted."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
