"""Answers as notebooks show them: a table and sentences in HTML, everything in them escaped."""

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left; padding:0.1em 1em 0.1em 0"


def html_block(
    title: str, rows: Iterable[Sequence[str]], notes: Iterable[str] = (), head: Sequence[str] | None = None
) -> str:
    """A title, a table (its first column in bold) and sentences under it."""
    cell = lambda words, kind: f'<{kind} style="{_CELL}">{escape(words)}</{kind}>'
    line = lambda cells, kinds: f"<tr>{''.join(map(cell, cells, kinds))}</tr>"
    table = [] if head is None else [line(head, ["th"] * len(head))]
    table += [line(row, ["th"] + ["td"] * (len(row) - 1)) for row in rows]
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<div><p><b>{escape(title)}</b></p><table>{''.join(table)}</table>{below}</div>"


def text_block(title: str, rows: Sequence[tuple[str, str]], width: int = 0) -> str:
    """A title, and rows of a name and words, the words one under the other."""
    width = max([width, *(len(name) for name, _ in rows)])
    return "\n".join([title, *(f"  {name:<{width}} {words}".rstrip() for name, words in rows)])
