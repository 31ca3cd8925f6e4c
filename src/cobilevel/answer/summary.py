"""How a solution reads: printed, as a summary, and in a notebook."""

from typing import Any

import numpy as np

from .notebook import html_block, text_block
from .uncertainty import TABLE_HEAD


def _objective_words(solution: Any) -> str:
    """The objective, with its standard error, as far as they are known."""
    found = solution.uncertainty
    value = "" if np.isnan(found.value) else f"{found.value:.6g}"
    return value + ("" if np.isnan(found.value_error) else f" +- {found.value_error:.2g}")


def _sentences(solution: Any) -> list[str]:
    """On what is not determined, and how the run ended."""
    found = solution.uncertainty
    said = [found.why_not] if found.why_not else []
    said += [f"{words[0].upper()}{words[1:]}" if words.startswith("the ") else words for words in found.undetermined]
    return [*said, f"{solution.result}" + (f" {solution.detail}" if solution.detail else "")]


def printed(solution: Any) -> str:
    """What ``print`` shows."""
    value = _objective_words(solution)
    lines = [f"objective {value}"] if value else []
    lines += [*solution.uncertainty.table().splitlines(), *_sentences(solution)]
    lines += [] if solution.feasibility is None else solution.feasibility.words()
    lines += [f"{topic}: {words}" for topic, words in solution.choices.items()]
    return "\n  ".join([_title(solution), *lines])


def _title(solution: Any) -> str:
    return f"Solution(converged={solution.converged}, basis={solution.basis.basis!r})"


def _facts(solution: Any) -> list[tuple[str, str]]:
    """Basis, choices, data and cost, each with its name."""
    stats, size = solution.stats, solution.basis.size
    facts = [("basis", f"{solution.basis.basis!r}: {size} function{'s'[: size != 1]} on {solution.basis.domain!r}")]
    facts += [(f"{topic}, chosen" if topic == "basis" else topic, words) for topic, words in solution.choices.items()]
    met = [] if solution.feasibility is None else solution.feasibility.words()
    facts += [(name, said) for name, _, said in (words.partition(": ") for words in met)]
    rows = stats.get("rows", {})
    if any(rows.values()):
        apart = ", ".join(f"{count} {level}" for level, count in rows.items() if count)
        facts.append(("samples", apart if len(set(rows.values())) > 1 else str(rows["lower"])))
    if "steps" in stats:
        seconds = stats.get("total_seconds", stats.get("seconds"))
        compiling = f", {stats['compile_seconds']:.2g} of them to compile" if "compile_seconds" in stats else ""
        facts.append(("took", f"{stats['steps']} steps" + (f", {seconds:.3g} seconds{compiling}" if seconds else "")))
    return facts


def summarised(solution: Any) -> str:
    """``x`` with its errors, how it ended, the basis, what was chosen, samples and seconds."""
    rows = [("ended", words) for words in _sentences(solution)[-1:]]
    rows += [("note", words) for words in _sentences(solution)[:-1]]
    value = _objective_words(solution)
    rows += [("objective", value)] if value else []
    table = solution.uncertainty.table().splitlines()
    facts = _facts(solution)
    width = max(len(name) for name, _ in rows + facts)
    above = text_block(f"Solution, {'converged' if solution.converged else 'not converged'}", rows, width)
    return "\n".join([above, "", *(f"  {line}" for line in table), *text_block("", facts, width).splitlines()])


def in_notebook(solution: Any) -> str:
    """The same in HTML."""
    found = solution.uncertainty
    value = _objective_words(solution)
    notes = [*([f"objective {value}"] if value else []), *_sentences(solution)]
    notes += [f"{name}: {words}" for name, words in _facts(solution)]
    return html_block(_title(solution), found.cells(), notes, TABLE_HEAD)
