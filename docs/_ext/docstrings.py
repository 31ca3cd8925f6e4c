"""Docstrings are Markdown in plain English; here they become what Sphinx reads, and names become links.

In docstrings `name` is an argument, ``code`` is code and $...$ is mathematics; a public name in code is a link to its
page.
"""

import re

from docutils import nodes
from public_names import public_names
from sphinx.transforms.post_transforms import SphinxPostTransform

NAME = re.compile(r"^(?:cb\.|cobilevel\.)?([A-Za-z_]\w*(?:\.\w+)*)(\(.*\))?$", re.S)


def to_rst(lines: list[str]) -> list[str]:
    """Markdown as docstrings have it, as reStructuredText."""
    text = "\n".join(lines)
    held: list[str] = []

    def hold(words: str) -> str:
        held.append(words)
        return f"\0{len(held) - 1}\0"

    def block(match: re.Match) -> str:
        body = " ".join(match[1].split())
        return hold(f"\n\n.. math::\n\n   {body}\n\n")

    text = re.sub(r"\$\$(.*?)\$\$", block, text, flags=re.S)
    text = re.sub(r"``(.*?)``", lambda m: hold(f"``{' '.join(m[1].split())}``"), text, flags=re.S)
    text = re.sub(r"(?<![\\$])\$([^$]+?)\$", lambda m: hold(f":math:`{' '.join(m[1].split())}`"), text, flags=re.S)
    text = re.sub(r"(?<!`)`([^`\n]+?)`(?!`)", lambda m: hold(f"``{m[1]}``"), text)
    for _ in range(2):
        text = re.sub(r"\0(\d+)\0", lambda m: held[int(m[1])], text)
    # roles and literals end at a word's end: part them from what follows
    return re.sub(r"(``|`)(?=[A-Za-z0-9])(?<=\S``)", r"\1", text).split("\n")


def _read(app, what, name, obj, options, lines):
    lines[:] = to_rst(lines)


def targets() -> dict[str, str]:
    """What users write, and what Sphinx calls it: ``solve`` and ``cb.solve`` are ``cobilevel.solve``."""
    return {name.removeprefix("cb."): "cobilevel" + name.removeprefix("cb") for name in public_names()}


class LinkNames(SphinxPostTransform):
    """Code that is a public name, such as `cb.solve(...)`, links to its page of the reference."""

    default_priority = 5

    def run(self, **kwargs):
        known, domain = targets(), self.env.get_domain("py")
        for node in list(self.document.findall(nodes.literal)):
            if isinstance(node.parent, nodes.reference) or node.parent.tagname in ("title", "desc_name"):
                continue
            match = NAME.match(node.astext())
            if not match or match[1] not in known:
                continue
            plain = not node.astext().startswith(("cb.", "cobilevel."))
            if plain and (match[1][0].islower() or not self.env.docname.startswith("reference/")):
                continue  # `reduce` alone may mean anything
            full = known[match[1]]
            if full in domain.objects and domain.objects[full].docname != self.env.docname:
                found = domain.objects[full]
                where = self.app.builder.get_relative_uri(self.env.docname, found.docname) + f"#{found.node_id}"
                link = nodes.reference("", "", internal=True, refuri=where, reftitle=full)
                node.replace_self(link)
                link += node


def _tidy_signature(app, what, name, obj, options, signature, back):
    """Without what fields of modules hold behind the scenes."""
    if signature:
        signature = re.sub(r"<factory>", "...", signature)
        signature = re.sub(r"<Signals\.\w+: (\d+)>", r"\1", signature)
    return signature, None


def _no_bases(app, name, obj, options, bases):
    bases.clear()


def setup(app):
    app.connect("autodoc-process-docstring", _read)
    app.connect("autodoc-process-signature", _tidy_signature)
    app.connect("autodoc-process-bases", _no_bases)
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True}
