"""Solutions as text and in notebooks."""

import re
from dataclasses import replace

import cobilevel as cb
from cobilevel.answer import html_block


def test_a_summary_says_what_was_solved_and_how(quadratic):
    solution = cb.solve(quadratic.problem, quadratic.train, basis=cb.Orthonormal(cb.Chebyshev(5)))
    words = solution.summary()
    for part in (
        "Solution, converged",
        "ended",
        "objective",
        "std. error",
        "Orthonormal(Chebyshev(5)): 5 functions on",
    ):
        assert part in words
    assert re.search(r"samples +4000\n", words)
    assert re.search(r"took +\d+ steps, [\d.]+ seconds\n", words + "\n")
    compiled = replace(solution, stats={**solution.stats, "total_seconds": 3.0, "compile_seconds": 2.0})
    assert "3 seconds, 2 of them to compile" in compiled.summary()
    for row in solution.uncertainty.table().splitlines():
        assert row in words
    shown = solution._repr_html_()
    assert shown.count("<tr>") == 1 + 5
    assert "4000" in shown
    apart = replace(solution, stats={**solution.stats, "rows": {"upper": 10, "lower": 20}})
    assert "10 upper, 20 lower" in apart.summary()
    lifted = replace(solution, stats={}, choices={}, inference=None, result=cb.Result.BUDGET)
    assert "not converged" in lifted.summary()
    assert "the solution holds no samples" in lifted.summary()


def test_html_is_escaped():
    found = html_block("<b>", [("<i>", "a < b")], ["x & y"], ("<u>", ""))
    for words in ("&lt;b&gt;", "&lt;i&gt;", "a &lt; b", "x &amp; y", "&lt;u&gt;"):
        assert words in found
    assert "<i>" not in found
