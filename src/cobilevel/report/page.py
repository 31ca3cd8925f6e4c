"""One HTML file that shows a reproduced experiment: what was claimed, what was measured, and the figures.

The paper's figures come first, then the verdicts in one screen. The text is written here, so that it can be read
without scripts; `page.js` draws the figures from the data, which the file carries as JSON. It asks the network for
nothing.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ..ground import write_file
from .panels import by_figure, label_styles

VERDICTS = {
    "holds": "✓",
    "holds as corrected": "≈",
    "holds under another reading": "◐",
    "fails": "✗",
    "not tested": "○",
}
_PAPERS = re.compile(r"Figure \d+(:|$)")  # what the paper calls its own
_READ = (
    '<p class="note">Where the paper is ambiguous, a claim is judged under one primary reading, chosen by its wording; '
    "results under other readings are folded up with it. Intervals cover all comparisons of a claim under a reading "
    "simultaneously, 95% of the time (Bonferroni).</p>"
)
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def write_page(summary: Mapping[str, Any], claims: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Writes the page of one experiment to `path`, whole or not at all, and returns the path.

    The data in it are ``{"summary", "claims", "styles"}``; NaN and infinities become ``null``, drawn as gaps.
    """
    _check(summary, claims)
    summary, claims = _finite(summary), _finite(claims)
    asset = lambda name: (files("cobilevel.report") / name).read_text(encoding="utf-8")
    papers, about = _figures(summary, True), summary.get("about") or ()
    sections = {
        "figures": ("The paper's figures", papers),
        "claims": ("What holds, and what does not", _claims(claims)),
        "more": ("More figures" if papers else "Figures", _figures(summary, False)),
        "tables": ("Tables", "".join(_html_table(table) for table in summary.get("tables") or ())),
        "policies": ("Policy explorer", _explorers(summary)),
        "about": ("About these runs", _pairs(about, "about", _words) if about else ""),
    }
    shown = {key: section for key, section in sections.items() if section[1]}
    text = Template(asset("page.html")).substitute(
        title=escape(summary["title"]),
        lead=escape(summary["lead"]),
        kicker=escape(f"{summary['experiment']} · {summary['budget']} budget"),
        strip=_strip(claims),
        links="".join(f'<a href="#{key}">{title}</a>' for key, (title, _) in shown.items()),
        sections="".join(
            f'<section id="{key}"><h2>{title}</h2>{body}</section>\n' for key, (title, body) in shown.items()
        ),
        css=asset("page.css"),
        script=asset("page.js"),
        data=_embedded({"summary": summary, "claims": claims, "styles": label_styles(summary)}),
    )
    return write_file(path, text)


def page_data(path: str | Path) -> dict[str, Any]:
    """What a page that was written carries: ``{"summary", "claims", "styles"}``."""
    found = re.search(r'id="data">(.*?)</script>', Path(path).read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise ValueError(f"{path} holds no data: it was not written by cobilevel.")
    return json.loads(found.group(1))


def joined(summaries: Sequence[Mapping[str, Any]], title: str, lead: str) -> dict[str, Any]:
    """Several experiments as one: figures, tables, policies and facts one after the other."""
    return {
        "experiment": " and ".join(one["experiment"] for one in summaries),
        "budget": ", ".join(dict.fromkeys(one["budget"] for one in summaries)),
        "title": title,
        "lead": lead,
        "about": [[f"{one['experiment']}: {k}", v] for one in summaries for k, v in one.get("about") or ()],
        "policies": [one["policies"] for one in summaries if one.get("policies")],
    } | {name: [part for one in summaries for part in one.get(name) or ()] for name in ("panels", "tables")}


# -- what a summary is made of


def rounded(values: Any, digits: int = 4) -> list[float]:
    """Numbers to so many significant digits, for a file that is read by people and browsers."""
    return [float(f"{value:.{digits}g}") for value in values]


def table_part(name: str, title: str, columns: Sequence[str], rows: Sequence[Any], note: str) -> dict[str, Any]:
    """A table of the page."""
    return {"id": name, "title": title, "columns": list(columns), "rows": list(rows), "note": note}


def panel_part(
    name: str, figure: str, title: str, axes: tuple[str, str], scales: tuple[str, str], series: Any, note: str,
    lines: Sequence[Any] = (),
) -> dict[str, Any]:  # fmt: skip
    """A panel of a figure of the page; of its axes and scales the horizontal one comes first."""
    words = {"xlabel": axes[0], "ylabel": axes[1], "xscale": scales[0], "yscale": scales[1], "note": note}
    return {"id": name, "figure": figure, "title": title, "series": list(series), "lines": list(lines)} | words


def line_part(label: str, x: Any, spread: Sequence[Any], digits: int = 17) -> dict[str, Any]:
    """Estimates along an axis, with their intervals."""
    ends = {end: rounded((getattr(one, end) for one in spread), digits) for end in ("low", "high")}
    return {"label": label, "x": list(x), "y": rounded(spread, digits)} | ends


def policies_part(context: str, values: Any, quantity: str, components: Sequence[str], entries: Iterable[Any]) -> Any:
    """Policies to be looked at: of each its basis, N and solver, what it gives, what is exact (component by context),
    and the error."""
    shown = [
        {"basis": basis, "N": N, "solver": solver, "policy": [rounded(row) for row in policy],
         "exact": [rounded(row) for row in exact], "error": rounded(error)}
        for basis, N, solver, policy, exact, error in entries
    ]  # fmt: skip
    along = {"label": context, "values": [float(value) for value in values]}
    return {"context": along, "quantity": quantity, "components": list(components), "entries": shown}


# -- how it is written


def number(value: float | int | None, aligned: bool = False) -> str:
    """A number to four significant digits, in powers of ten when very small or large; a dash for none.

    `aligned` keeps the zeros at the end, for the columns of a table.
    """
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    size = abs(value)
    if isinstance(value, int) or (value == round(value) and size < 1e5 and not aligned) or 9999.5 <= size < 1e5:
        text = f"{value:.0f}"
    elif value and (size < 1e-3 or size >= 1e5):
        mantissa, exponent = f"{value:.2e}".split("e")
        mantissa = mantissa if aligned else f"{float(mantissa):g}"
        text = f"{mantissa}\N{MULTIPLICATION SIGN}10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    else:
        text = f"{value:#.4g}".rstrip(".") if aligned else f"{value:.4g}"
    return text.replace("-", "\N{MINUS SIGN}")


def _check(summary: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> None:
    """Raises where the page would silently show less than it was given."""
    for claim in claims:
        if claim["verdict"] not in VERDICTS:
            raise ValueError(f"claim {claim['id']} has verdict {claim['verdict']!r}; expected one of {list(VERDICTS)}")
    for panel in summary.get("panels") or ():
        for series in panel["series"]:
            lengths = {key: len(series[key]) for key in ("x", "y", "low", "high") if series.get(key) is not None}
            if len(set(lengths.values())) > 1:
                raise ValueError(f"panel {panel['id']}, series {series['label']}: lengths differ, {lengths}")
    for table in summary.get("tables") or ():
        for row in table["rows"]:
            if len(row) != len(table["columns"]):
                raise ValueError(f"table {table['id']}: {len(row)} cells under {len(table['columns'])} columns: {row}")


def _finite(value: Any) -> Any:
    """The value in plain Python types, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # arrays, and scalars of NumPy
        return _finite(value.tolist())
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _embedded(data: Any) -> str:
    """JSON that no HTML parser can mistake for markup."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _strip(claims: Sequence[Mapping[str, Any]]) -> str:
    """The counts of the verdicts; those that fail, and those not tested, by name."""
    if not claims:
        return ""
    cells, bars = [], []
    for verdict, symbol in VERDICTS.items():
        ids = [claim["id"] for claim in claims if claim["verdict"] == verdict]
        kind = verdict.replace(" ", "-")
        named = "" if verdict == "holds" else ", ".join(f'<a href="#claim-{escape(i)}">{escape(i)}</a>' for i in ids)
        word = verdict.removesuffix("s") if len(ids) != 1 and verdict in ("holds", "fails") else verdict
        cells.append(
            f'<div class="count {kind}"><span class="symbol" aria-hidden="true">{symbol}</span>'
            f"<strong>{len(ids)}</strong> <span>{word}</span><small>{named}</small></div>"
        )
        if ids:
            bars.append(f'<i class="{kind}" style="flex-grow: {len(ids)}"></i>')
    return (
        f'<div class="strip" role="group" aria-label="Verdicts">{"".join(cells)}</div>'
        f'<div class="bar" aria-hidden="true">{"".join(bars)}</div>'
    )


def _table(columns: Iterable[str], rows: Iterable[str], kinds: Iterable[str] = (), attributes: str = "") -> str:
    """A table from what is in its rows; `kinds` are the attributes of the column heads."""
    head = itertools.zip_longest(columns, kinds, fillvalue="")
    heads = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in head)
    body = "".join(rows)
    return f"<table{attributes}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    """The claims that were tested first; each in a line or two, with what is behind it folded up."""
    rows = [_claim(claim) for claim in sorted(claims, key=lambda claim: claim["verdict"] == "not tested")]
    if not rows:
        return ""
    heads = ("", "Claim", "Verdict", "Readings under which it holds")
    table = _table(heads, rows, attributes=' class="claims"')
    return _READ * any(claim.get("readings") for claim in claims) + table


def _claim(claim: Mapping[str, Any]) -> str:
    details = "".join(
        f"<p><b>{'With Newton' if name == 'newton' else name.capitalize()}.</b> {_measured(claim[name])}</p>"
        for name in ("measured", "threshold", "misses", "why", "newton", "how")
        if claim.get(name) and (name != "why" or claim["verdict"] != "holds")
    )
    rows = [
        f"<tr><td>{'<b>primary:</b> ' * bool(one.get('primary'))}{escape(one['reading'])}</td>"
        f"<td>{escape(one['verdict'])}</td><td>{escape(one['measured'])}</td></tr>"
        for one in claim.get("readings") or ()
    ]
    details += f'<div class="scroll">{_table(("reading", "verdict", "measured"), rows)}</div>' if rows else ""
    name, words, verdict = escape(claim["id"]), escape(claim["claim"]), escape(claim["verdict"])
    text = f"<details><summary>{words}</summary>{details}</details>" if details else f"<p>{words}</p>"
    return (
        f'<tr id="claim-{name}" class="{verdict.replace(" ", "-")}"><th scope="row">{name}</th>'
        f'<td class="what">{text}</td>'
        f'<td class="verdict"><span aria-hidden="true">{VERDICTS[verdict]}</span> {verdict}</td>'
        f'<td data-name="Reading"><div>{escape(claim.get("reading") or "")}</div></td></tr>'
    )


def _measured(value: Any) -> str:
    if isinstance(value, Mapping):
        return _pairs(value.items(), "pairs", _measured)
    return ", ".join(_measured(item) for item in value) if isinstance(value, list) else _words(value)


def _words(value: Any, aligned: bool = False) -> str:
    """Text as it is, numbers rounded, truth in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value, aligned) if value is None or isinstance(value, int | float) else escape(str(value))


def _pairs(pairs: Iterable[Sequence[Any]], kind: str, words: Callable[[Any], str]) -> str:
    """A list of names and values."""
    text = "".join(f"<dt>{escape(str(label))}</dt><dd>{words(value)}</dd>" for label, value in pairs)
    return f'<dl class="{kind}">{text}</dl>'


def _figures(summary: Mapping[str, Any], papers: bool) -> str:
    """Frames for the script to draw in, the paper's figures or the others; charts find their panel by position."""
    place = {id(panel): k for k, panel in enumerate(summary.get("panels") or ())}
    groups = []
    for name, panels in by_figure(summary).items():
        if papers != bool(_PAPERS.match(name)):
            continue
        frames = "".join(
            f"<figure><figcaption><h4>{escape(panel['title'])}</h4></figcaption>"
            f'<div class="chart" data-panel="{place[id(panel)]}"></div>{_note(panel)}</figure>'
            for panel in panels
        )
        title = escape(name.strip())
        groups.append(
            f'<div class="group"><h3>{title[:1].upper()}{title[1:]}</h3>'
            f'<div class="panels count-{min(len(panels), 4)}">{frames}</div>'
            f'<div class="legend" role="group" aria-label="Series shown"></div></div>'
        )
    return "".join(groups)


def _explorers(summary: Mapping[str, Any]) -> str:
    """The policies to explore, of each experiment."""
    policies = summary.get("policies") or []
    every = [one for one in ([policies] if isinstance(policies, Mapping) else policies) if one.get("entries")]
    return "".join(_explorer(one, f"-{k + 1}" if k else "") for k, one in enumerate(every))


def _explorer(policies: Mapping[str, Any], end: str) -> str:
    selects = "".join(
        f'<label>{title}<select id="pick-{key}{end}"></select></label>'
        for key, title in (("basis", "Basis"), ("N", "Basis size N"), ("solver", "Solver"))
    )
    return (
        f"<h3>The {escape(policies['quantity'])} by {escape(policies['context']['label'])}</h3>"
        f'<form class="controls" autocomplete="off">{selects}'
        f'<fieldset><legend>Components</legend><div class="components" id="components{end}"></div></fieldset></form>'
        f'<p id="policy-words{end}" aria-live="polite"></p>'
        f'<figure><div class="chart" id="policy-chart{end}"></div></figure>'
        f'<figure><div class="chart" id="error-chart{end}"></div></figure>'
    )


def _html_table(table: Mapping[str, Any]) -> str:
    """A table that scrolls inside its own frame; columns of numbers to the right."""
    columns = list(zip(*table["rows"], strict=True)) or [()] * len(table["columns"])
    kinds = ["" if any(isinstance(cell, str) for cell in column) else ' class="number"' for column in columns]
    cells = lambda row: (f"<td{kind}>{_words(cell, bool(kind))}</td>" for cell, kind in zip(row, kinds, strict=True))
    rows = [f"<tr>{''.join(cells(row))}</tr>" for row in table["rows"]]
    title = escape(table["title"])
    return (
        f'<h3>{title}</h3><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"{_table(table['columns'], rows, kinds)}</div>{_note(table)}"
    )


def _note(part: Mapping[str, Any]) -> str:
    return f'<p class="note">{escape(part["note"])}</p>' if part.get("note") else ""
