"""Pages of the gallery are run when the site is built: what they print and the pictures they show are of this version.

The pages themselves are plain Markdown, with what an earlier version printed and drew. For the site the code of a page
is run in a process of its own; its output takes the place of the printed one, and pictures are drawn again. Both are
kept until the page or the package changes.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CODE = re.compile(r"```python\n(.*?)```\n", re.S)
PRINTED = re.compile(r"^```\n.*?\n```\n", re.S | re.M)
DRAWN_BY_THE_PAGE = {
    "network": "The network: flows as widths, errors of capacities as colours.",
    "cleaning": "Numbers of images by weight: those with wrong labels have smaller ones.",
}
MARK = "=== the entry ==="
# After the code of a page, in the same process, so that what is compiled for one serves the other.
ENTRY = """
print("=== the entry ===")
from io import StringIO
from pathlib import Path
import jax
jax.config.update("jax_enable_x64", True)
from rich.console import Console
from cobilevel.commands import solve_entry
words = StringIO()
solve_entry("{name}", Path("{name}.png"), Console(file=words, width=118))
print(words.getvalue().rpartition("\\n\\n")[0].strip())
"""
# For the list of problems: one panel of the last figure, drawn again at the size of a card.
PANELS = {"cleaning": 1, "meta_learning": 1, "portfolio": 1}  # where it is not the first
CARD = """
import textwrap
import matplotlib.pyplot as plt
figure = plt.gcf()
panels = [axis for axis in figure.axes if axis.get_subplotspec() is not None]
for axis in figure.axes:
    if axis is not panels[{panel}]:
        axis.remove()
panels[{panel}].set_subplotspec(figure.add_gridspec()[0])
panels[{panel}].set_title("")
figure.suptitle("")
for legend in [*figure.legends, panels[{panel}].get_legend()]:
    if legend is not None:
        legend.remove()
for label in (panels[{panel}].xaxis.label, panels[{panel}].yaxis.label):
    label.set_text(textwrap.fill(label.get_text(), 28))
figure.set_size_inches(3.6, 2.6)
figure.savefig("{name}-card.png", dpi=200)
"""


def _run(code: str) -> tuple[str, dict[str, bytes]]:
    """What a script prints, and the pictures it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "page.py"
        script.write_text(code)
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, cwd=folder, env=dict(os.environ)
        )
        if done.returncode:
            raise RuntimeError(f"a page of the gallery failed:\n{done.stderr}")
        return done.stdout.rstrip(), {path.name: path.read_bytes() for path in Path(folder).glob("*.png")}


def _kept(app, name: str, code: str) -> str:
    """The same, from what was kept of it; pictures go where pages look for them."""
    digest = hashlib.sha256(code.encode()).hexdigest()[:16]
    folder = Path(app.config.executed_kept) / "pages"
    text, pictures = folder / f"{name}-{digest}.json", Path(app.srcdir) / "_pictures"
    pictures.mkdir(exist_ok=True)
    if not text.exists():
        start = time.perf_counter()
        printed, drawn = _run(code)
        print(f"{name} took {time.perf_counter() - start:.0f} s", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in drawn.items():
            (folder / f"{name}-{digest}-{file}").write_bytes(content)
        text.write_text(json.dumps({"printed": printed, "drawn": sorted(drawn)}))
    content = json.loads(text.read_text())
    for file in content["drawn"]:
        data, to = (folder / f"{name}-{digest}-{file}").read_bytes(), pictures / file
        if not to.exists() or to.read_bytes() != data:
            to.write_bytes(data)
    return content["printed"]


def run_all(app) -> None:
    """Every page with code, and every entry that the command can solve."""
    from cobilevel.gallery import ENTRIES

    app.executed_pages, app.executed_entries = {}, {}  # what they print, by name
    if app.config.nb_execution_mode == "off":  # a quick look at the pages, as they are written
        return
    jobs = {}
    for page in sorted((Path(app.srcdir) / "gallery").glob("*.md")):
        name, code = page.stem, "".join(CODE.findall(page.read_text()))
        code += ENTRY * (name in ENTRIES) + CARD * (name in ENTRIES or name in DRAWN_BY_THE_PAGE)
        if code:
            jobs[name] = code.replace("{name}", name).replace("{panel}", str(PANELS.get(name, 0)))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each runs in a process of its own
        printed = pool.map(lambda name: _kept(app, name, jobs[name]), jobs)
    for name, words in zip(jobs, printed, strict=True):
        app.executed_pages[name], _, entry = (part.strip("\n") for part in words.partition(MARK + "\n"))
        if name in ENTRIES:
            app.executed_entries[name] = entry


def _with_cards(app, text: str) -> str:
    """The list of the gallery: a card with its picture for each page, and the table below."""
    folder = Path(app.srcdir) / "gallery"
    pages = [page.stem for page in sorted(folder.glob("*.md")) if page.stem != "index"]
    cards = ["::::{grid} 1 2 2 3", ":gutter: 2", ""]
    for page in pages:
        title = (folder / f"{page}.md").read_text().partition("\n")[0].removeprefix("# ")
        cards += [":::{grid-item-card} " + title, f":link: {page}", ":link-type: doc"]
        if (Path(app.srcdir) / "_pictures" / f"{page}-card.png").exists():
            cards += [f":img-top: /_pictures/{page}-card.png", f":img-alt: {title}"]
        cards += [":::", ""]
    tree = ["```{toctree}", ":hidden:", "", *pages, "```"]
    head, table = text.split("\n| entry |", 1)
    return head + "\n" + "\n".join([*cards, "::::", "", *tree, ""]) + "\n| entry |" + table


def _example(app) -> str:
    """The picture and the example of the README, for the first page."""
    text = (Path(app.srcdir).parent / "README.md").read_text()
    shown = text[text.index("![") : text.index("## Where next")].replace("](docs/", "](")
    return re.sub(r"!\[.*?\]", lambda match: match[0].replace("\n", " "), shown, flags=re.S)


def _show(app, docname: str, source: list[str]) -> None:
    """The page as this version has it."""
    source[0] = source[0].replace("<!-- the example of the README -->", _example(app))
    if not docname.startswith("gallery/"):
        return
    name, text = docname.partition("/")[2], source[0]
    if name == "index":
        source[0] = _with_cards(app, text)
        return
    if app.config.nb_execution_mode == "off":
        return
    text = re.sub(r"\]\((\w+\.png)\)", r"](/_pictures/\1)", text)
    printed = app.executed_pages.get(name)
    if printed:
        end = list(CODE.finditer(text))[-1].end()
        head, tail = text[:end], text[end:]
        block = f"```text\n{printed}\n```\n"
        at = PRINTED.search(tail)
        text = f"{head}\nIt prints\n\n{block}{tail}"
        if at:
            text = head + tail[: at.start()] + block + tail[at.end() :]
    if name in app.executed_entries:
        from cobilevel.gallery import ENTRIES

        alt = " ".join((ENTRIES[name][1].__doc__ or name).split("\n\n")[0].split())
        printed = f"```text\n{app.executed_entries[name]}\n```"
        text += f"\n## With this version\n\n`cobilevel gallery {name}` prints\n\n{printed}\n"
        if "/_pictures/" not in text:
            text += f"\n![{alt}](/_pictures/{name}.png)\n"
    elif name in DRAWN_BY_THE_PAGE:
        text += f"\n![{DRAWN_BY_THE_PAGE[name]}](/_pictures/{name}.png)\n"
    source[0] = text


def _plain(app, docname: str, source: list[str]) -> None:
    """Blocks of no language are what was printed, and not to be coloured as code."""
    lines, inside = source[0].split("\n"), False
    for k, line in enumerate(lines):
        if line.startswith("```"):
            lines[k] = "```text" if line == "```" and not inside else line
            inside = not inside
    source[0] = "\n".join(lines)


def setup(app):
    app.add_config_value("executed_kept", "", "env")
    app.connect("builder-inited", run_all, priority=50)
    app.connect("source-read", _show)
    app.connect("source-read", _plain, priority=900)
    return {"parallel_read_safe": True}
