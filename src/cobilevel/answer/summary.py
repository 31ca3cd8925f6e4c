"""How a solution reads: printed, as a summary, and in a notebook, where everything in it is escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np


def _title(solution: Any) -> str:
    return f"Solution(converged={solution.converged}, basis={solution.basis.basis!r})"


def _objective_words(solution: Any) -> list[str]:
    """The objective, with its standard error, as far as they are known; one item or none."""
    value, error = solution.uncertainty.value, solution.uncertainty.value_error
    words = ("" if np.isnan(value) else f"{value:.6g}") + ("" if np.isnan(error) else f" +- {error:.2g}")
    return [words] if words else []


def _sentences(solution: Any) -> list[str]:
    """On what is not determined, and last how the run ended."""
    known = solution.uncertainty
    said = [known.why_not] if known.why_not else []
    said += [f"{words[0].upper()}{words[1:]}" if words.startswith("the ") else words for words in known.undetermined]
    return [*said, *known.remarks, f"{solution.result} {solution.detail}".rstrip()]


def _constraint_words(solution: Any) -> list[str]:
    return [] if solution.feasibility is None else solution.feasibility.words()


def _facts(solution: Any) -> list[tuple[str, str]]:
    """Basis, choices, data and cost, each with its name."""
    stats, size = solution.stats, solution.basis.size
    facts = [("basis", f"{solution.basis.basis!r}: {size} function{'s'[: size != 1]} on {solution.basis.domain!r}")]
    facts += [(f"{topic}, chosen" if topic == "basis" else topic, words) for topic, words in solution.choices.items()]
    facts += [(name, said) for name, _, said in (words.partition(": ") for words in _constraint_words(solution))]
    rows = stats.get("rows", {})
    if any(rows.values()):
        apart = ", ".join(f"{count} {level}" for level, count in rows.items() if count)
        facts.append(("samples", apart if len(set(rows.values())) > 1 else str(rows["lower"])))
    if "steps" in stats:
        seconds = stats.get("total_seconds", stats.get("seconds"))
        compiled = stats.get("compile_seconds", 0.0)  # of solvers on the host, next to nothing
        compiling = f", {compiled:.2g} of them to compile" if seconds and compiled > 0.1 * seconds else ""
        facts.append(("took", f"{stats['steps']} steps" + (f", {seconds:.3g} seconds{compiling}" if seconds else "")))
    return facts


def printed(solution: Any) -> str:
    """What ``print`` shows."""
    lines = [f"objective {words}" for words in _objective_words(solution)]
    lines += [*solution.uncertainty.table().splitlines(), *_sentences(solution), *_constraint_words(solution)]
    lines += [f"{topic}: {words}" for topic, words in solution.choices.items()]
    return "\n  ".join([_title(solution), *lines])


def summarised(solution: Any) -> str:
    """``x`` with its errors, how it ended, the basis, what was chosen, samples and seconds."""
    *notes, ended = _sentences(solution)
    rows = [("ended", ended), *(("note", words) for words in notes)]
    rows += [("objective", words) for words in _objective_words(solution)]
    facts = _facts(solution)
    width = max(len(name) for name, _ in rows + facts)
    lines = lambda pairs: [f"  {name:<{width}} {words}".rstrip() for name, words in pairs]
    table = [f"  {line}" for line in solution.uncertainty.table().splitlines()]
    title = f"Solution, {'converged' if solution.converged else 'not converged'}"
    return "\n".join([title, *lines(rows), "", *table, "", *lines(facts)])


def in_notebook(solution: Any) -> str:
    """The same in HTML."""
    notes = [f"objective {words}" for words in _objective_words(solution)] + _sentences(solution)
    notes += [f"{name}: {words}" for name, words in _facts(solution)]
    return html_block(_title(solution), solution.uncertainty.cells(), notes, solution.uncertainty.head)


def html_block(
    title: str, rows: Iterable[Sequence[str]], notes: Iterable[str] = (), head: Sequence[str] | None = None
) -> str:
    """A title, a table (its first column in bold) and sentences under it."""
    style = "text-align:left; padding:0.1em 1em 0.1em 0"
    cell = lambda words, kind: f'<{kind} style="{style}">{escape(words)}</{kind}>'
    line = lambda cells, kinds: f"<tr>{''.join(map(cell, cells, kinds))}</tr>"
    table = [] if head is None else [line(head, ["th"] * len(head))]
    table += [line(row, ["th"] + ["td"] * (len(row) - 1)) for row in rows]
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<div><p><b>{escape(title)}</b></p><table>{''.join(table)}</table>{below}</div>"
