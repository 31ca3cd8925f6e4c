"""The page and the figures of a reproduced experiment, as files."""

import json
import math
import re

import numpy as np
import pytest

from cobilevel.report import write_page
from cobilevel.report.page import number
from summaries import HOSTILE, claims, cleaning, inverse


def embedded(path):
    (found,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.S
    )
    return json.loads(found, parse_constant=pytest.fail)


def test_the_page_carries_its_data(tmp_path):
    path = write_page(inverse(), claims(), tmp_path / "deep" / "report.html")
    data = embedded(path)
    assert data["claims"] == claims()
    assert data["summary"]["panels"][1]["series"][2]["y"][2] is None  # NaN is a gap
    assert data["summary"]["panels"][0] == inverse()["panels"][0]
    assert list(path.parent.iterdir()) == [path]  # nothing left next to it
    assert not re.search(r"(src|href)=[\"']?(https?:|//)|@import|url\(http", path.read_text(encoding="utf-8"))


def test_words_cannot_become_markup(tmp_path):
    hostile = [claims()[0] | {"id": "<i>", "claim": HOSTILE, "measured": {HOSTILE: [HOSTILE, np.float32(0.5)]}}]
    path = write_page(cleaning(), hostile, tmp_path / "report.html")
    assert embedded(path)["summary"]["title"] == HOSTILE
    assert embedded(path)["claims"][0]["measured"] == {HOSTILE: [HOSTILE, 0.5]}
    text = path.read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 2
    assert "<!-- " not in text
    assert "policy-chart" not in text.split('id="data"')[0]  # no policies, no explorer


def test_an_unfinished_page_replaces_nothing(tmp_path):
    path = write_page(inverse(), claims(), tmp_path / "report.html")
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_page(inverse() | {"about": [["a", object()]]}, claims(), path)
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
        write_page(summary, made, tmp_path / "report.html")


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
