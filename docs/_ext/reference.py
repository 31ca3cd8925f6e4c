"""The pages of the reference: one for each topic, one for each public name, made anew at each build."""

import inspect
from pathlib import Path

from public_names import TOPICS, by_topic, docstring, public_names

GUIDES = {
    "Problems and domains": ["contexts", "constraints"],
    "Data": ["frames", "rows", "contexts"],
    "Solving": ["start", "reading", "long_runs", "performance"],
    "Judging": ["how_good", "reading", "certificate"],
    "Bases": ["bases", "contexts", "dimensions"],
    "Solvers": ["solvers", "long_runs"],
    "Direct methods": ["choosing"],
    "Gallery": ["gallery/index"],
    "Many solves": ["sweeps"],
}
# Of names that have a closer page than their topic.
CLOSER = {
    "constraints": ("cb.Bounds", "cb.Equalities", "cb.Inequalities", "cb.Simplex"),
    "contexts": ("cb.Interval", "cb.Box", "cb.Periodic", "cb.Unbounded", "cb.Finite", "cb.Mixed", "cb.domain_of"),
    "frames": ("cb.domain_of", "cb.Solution"),
    "levels": ("cb.Levels",),
    "reading": ("cb.Result", "cb.Solution", "cb.Certificate"),
    "certificate": ("cb.Certificate",),
}
# Methods that users call, where a class has more.
MEMBERS = {
    "cb.Solution": "converged, uncertainty, standard_error, interval, policy, policy_standard_error, save, table, "
    "plot, summary",
    "cb.Samples": "from_frame",
    "cb.Unbounded": "fitted",
    "cb.Diagnosis": "condition, inner_step, predict, plot",
    "cb.Certificate": "stationary, blame, plot",
    "cb.Result": "",
    "cb.sweep.Runs": "find, get, curves, missing, add, mend",
}
INTRO = """# Reference

Every public name: what it takes, what it gives back, what it raises, and an example. Examples begin with

```python
import jax, jax.numpy as jnp, numpy as np
import cobilevel as cb
```

and are run by the tests. At a glance: [all names by topic](../contents.md). Words: [glossary](../glossary.md). The
command line: [commands](../commands.md).

"""


def _slug(topic: str) -> str:
    return topic.lower().replace(" ", "_")


def _summary(value) -> str:
    """The first sentence of a docstring, as one line of a table."""
    first = docstring(value).split("\n\n")[0]
    words = " ".join(first.split())
    if "$$" in words:  # an algorithm in formulas: whose it is
        words = " ".join(docstring(value).partition("Reference: ")[2].partition("\n\n")[0].split())
        return words.rstrip(".")
    return words.split(". ")[0].replace("``", "`").replace("|", "\\|").rstrip(":,")


def _guides(topic: str, name: str = "") -> str:
    pages = [page for page, names in CLOSER.items() if name in names] or GUIDES.get(topic, [])
    links = ", ".join(f"{{doc}}`/{page}`" for page in pages)
    return f"In the guide: {links}.\n\n" if links else ""


def _page(name: str, value, topic: str) -> str:
    module, _, last = ("cobilevel" + name.removeprefix("cb")).rpartition(".")
    full = f"{module}::{last}"  # the module said apart, so that source listings link back to the right place
    lines = [f"# {name.removeprefix('cb.')}", "", "```{eval-rst}"]
    if inspect.isclass(value):
        lines += [f".. autoclass:: {full}"]
        if MEMBERS.get(name):
            lines += [f"   :members: {MEMBERS[name]}"]
        elif name == "cb.Result":
            lines += ["   :members:", "   :undoc-members:"]
    else:
        lines += [f".. autofunction:: {full}"]
    lines += ["```", ""]
    kinds = value.__mro__[1:] if inspect.isclass(value) else ()
    if any(kind.__name__ == "Stochastic" for kind in kinds):
        common = inspect.cleandoc(next(kind for kind in kinds if kind.__name__ == "Stochastic").__doc__)
        common = common.partition("**Arguments** common to all; ")[2].replace("``", "`")
        lines += ["## Arguments of every stochastic solver", "", common[:1].upper() + common[1:], ""]
    lines += [_guides(topic, name)]
    return "\n".join(lines)


def write(app) -> None:
    """All pages; those that are as they were are left alone, so that they are not read again."""
    folder = Path(app.srcdir) / "reference"
    values, pages = public_names(), {}
    index = INTRO
    for topic, names in by_topic().items():
        words = TOPICS.get(topic, ("", ""))[0]
        rows = [f"| [`{n}`]({n}.md) | {_summary(values[n])} |" for n in names]
        table = "\n".join(["| name | what it is |", "|---|---|", *rows])
        tree = "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])
        pages[_slug(topic)] = f"# {topic}\n\n{words}\n\n{_guides(topic)}{table}\n\n{tree}\n"
        index += f"- [{topic}]({_slug(topic)}.md): {words} {len(names)} names.\n"
        pages |= {n: _page(n, values[n], topic) for n in names}
    index += "\n```{toctree}\n:hidden:\n\n" + "\n".join(map(_slug, by_topic())) + "\n```\n"
    pages["index"] = index
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        if old.stem != "index" and old.name[:-3] not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app):
    app.connect("builder-inited", write, priority=100)
    return {"parallel_read_safe": True}
