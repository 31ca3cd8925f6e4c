"""What is said about constraints."""

from cobilevel.lower.constraints import Feasibility, Violation


def test_nothing_is_active_at_none_of_the_samples():
    """Half a percent, which prints as 0%, is not listed; what prints as 1% is."""
    row = lambda name, active: Violation(name, 0.0, 0.0, 0.0, 0.0, active)
    rows = (row("y[0] >= 0", 0.005), row("y[1] >= 0", 0.0051))
    words = Feasibility(0, 0.0, 0.0, 0.0, 0.0, 1e-3, rows).words()
    assert words[-1] == "active: y[1] >= 0 at 1% of samples."
