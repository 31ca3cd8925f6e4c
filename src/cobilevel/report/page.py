"""One HTML file that shows a reproduced experiment: what was claimed, what was measured, and the figures.

The paper's figures come first, then the verdicts in one screen. The text is written here, so that it can be read
without scripts; `page.js` draws the figures from the data, which the file carries as JSON. It asks the network for
nothing.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ..archive import write_file
from .panels import by_figure, label_styles

VERDICTS = {"holds": "✓", "holds as corrected": "≈", "fails": "✗", "not tested": "○"}
_PAPERS = re.compile(r"Figure \d+(:|$)")  # what the paper calls its own
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def write_page(summary: Mapping[str, Any], claims: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Writes the page of one experiment to `path`, whole or not at all, and returns the path.

    The data in it are ``{"summary", "claims", "styles"}``; NaN and infinities become ``null``, drawn as gaps.
    """
    _check(summary, claims)
    summary, claims = _finite(summary), _finite(claims)
    assets = files("cobilevel.report")
    papers, others = _figures(summary, True), _figures(summary, False)
    sections = {
        "figures": ("The paper's figures", papers),
        "claims": ("What holds, and what does not", _claims(claims)),
        "more": ("More figures" if papers else "Figures", others),
        "tables": ("Tables", "".join(_html_table(table) for table in summary.get("tables") or ())),
        "policies": ("Policy explorer", "".join(_explorer(one, k) for k, one in enumerate(_explored(summary)))),
        "about": ("About these runs", _about(summary.get("about") or ())),
    }
    shown = {key: section for key, section in sections.items() if section[1]}
    text = Template((assets / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(summary["title"]),
        lead=escape(summary["lead"]),
        kicker=escape(f"{summary['experiment']} · {summary['budget']} budget"),
        strip=_strip(claims),
        links="".join(f'<a href="#{key}">{title}</a>' for key, (title, _) in shown.items()),
        sections="".join(
            f'<section id="{key}"><h2>{title}</h2>{body}</section>\n' for key, (title, body) in shown.items()
        ),
        css=(assets / "page.css").read_text(encoding="utf-8"),
        script=(assets / "page.js").read_text(encoding="utf-8"),
        data=_embedded({"summary": summary, "claims": claims, "styles": label_styles(summary)}),
    )
    return write_file(path, text)


def joined(summaries: Sequence[Mapping[str, Any]], title: str, lead: str) -> dict[str, Any]:
    """Several experiments as one: figures, tables, policies and facts one after the other."""
    parts = {name: [part for one in summaries for part in one.get(name) or ()] for name in ("panels", "tables")}
    about = [[f"{one['experiment']}: {label}", value] for one in summaries for label, value in one.get("about") or ()]
    budgets = dict.fromkeys(one["budget"] for one in summaries)
    return {
        "experiment": " and ".join(one["experiment"] for one in summaries),
        "budget": ", ".join(budgets),
        "title": title,
        "lead": lead,
        "about": about,
        "policies": [one["policies"] for one in summaries if one.get("policies")],
    } | parts


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
    cells, bars = [], []
    for verdict, symbol in VERDICTS.items():
        ids = [claim["id"] for claim in claims if claim["verdict"] == verdict]
        kind = verdict.replace(" ", "-")
        named = "" if verdict == "holds" else ", ".join(f'<a href="#claim-{escape(i)}">{escape(i)}</a>' for i in ids)
        words = {"holds": ("holds", "hold"), "fails": ("fails", "fail")}.get(verdict, (verdict, verdict))
        cells.append(
            f'<div class="count {kind}"><span class="symbol" aria-hidden="true">{symbol}</span>'
            f"<strong>{len(ids)}</strong> <span>{words[len(ids) != 1]}</span><small>{named}</small></div>"
        )
        if ids:
            bars.append(f'<i class="{kind}" style="flex-grow: {len(ids)}"></i>')
    whole = f'<div class="bar" aria-hidden="true">{"".join(bars)}</div>'
    return f'<div class="strip" role="group" aria-label="Verdicts">{"".join(cells)}</div>{whole}' if claims else ""


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    """The claims that were tested first; each in a line or two, with what is behind it folded up."""
    head = "".join(f'<th scope="col">{title}</th>' for title in ("", "Claim", "Verdict", "Under which reading"))
    rows = "".join(_claim(claim) for claim in sorted(claims, key=lambda claim: claim["verdict"] == "not tested"))
    return f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>' if claims else ""


def _claim(claim: Mapping[str, Any]) -> str:
    kind = claim["verdict"].replace(" ", "-")
    parts = {name: claim.get(name) for name in ("measured", "threshold", "why", "newton", "how")}
    titles = {"newton": "With Newton", "why": "Why"}
    details = "".join(
        f"<p><b>{titles.get(name, name.capitalize())}.</b> {_measured(words)}</p>"
        for name, words in parts.items()
        if words
    )
    rows = "".join(
        f"<tr><td>{escape(one['reading'])}</td><td>{one['verdict']}</td><td>{escape(one['measured'])}</td></tr>"
        for one in claim.get("readings") or ()
    )
    if rows:
        names = "".join(f'<th scope="col">{name}</th>' for name in ("reading", "verdict", "measured"))
        details += f'<div class="scroll"><table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table></div>'
    words = escape(claim["claim"])
    text = f"<details><summary>{words}</summary>{details}</details>" if details else f"<p>{words}</p>"
    reading = escape(claim.get("reading") or "")
    return (
        f'<tr id="claim-{escape(claim["id"])}" class="{kind}"><th scope="row">{escape(claim["id"])}</th>'
        f'<td class="what">{text}</td>'
        f'<td class="verdict"><span aria-hidden="true">{VERDICTS[claim["verdict"]]}</span> {claim["verdict"]}</td>'
        f'<td data-name="Reading"><div>{reading}</div></td></tr>'
    )


def _measured(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = "".join(f"<dt>{escape(key)}</dt><dd>{_measured(item)}</dd>" for key, item in value.items())
        return f'<dl class="pairs">{pairs}</dl>'
    return ", ".join(_measured(item) for item in value) if isinstance(value, list) else _words(value)


def _words(value: Any, aligned: bool = False) -> str:
    """Text as it is, numbers rounded, truth in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value, aligned) if value is None or isinstance(value, int | float) else escape(str(value))


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


def _explored(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The policies to explore, of each experiment."""
    found = summary.get("policies") or []
    return [one for one in ([found] if isinstance(found, Mapping) else found) if one.get("entries")]


def _explorer(policies: Mapping[str, Any], place: int) -> str:
    end = f"-{place + 1}" if place else ""
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
    head = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(table["columns"], kinds, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{_words(cell, bool(kind))}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in table["rows"]
    )
    title = escape(table["title"])
    return (
        f'<h3>{title}</h3><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{_note(table)}"
    )


def _note(part: Mapping[str, Any]) -> str:
    return f'<p class="note">{escape(part["note"])}</p>' if part.get("note") else ""


def _about(about: Sequence[Sequence[Any]]) -> str:
    pairs = "".join(f"<dt>{escape(str(label))}</dt><dd>{_words(value)}</dd>" for label, value in about)
    return f'<dl class="about">{pairs}</dl>' if pairs else ""
