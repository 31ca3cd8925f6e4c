"""Verdicts follow the data: in a world made as the paper describes it every claim holds, and each fails in its turn."""

import numpy as np
import pytest

from cobilevel.paper.cleaning.verdicts import cleaning_verdicts
from cobilevel.paper.inverse.complexity import complexity_verdict
from cobilevel.paper.inverse.experiment import Inverse
from cobilevel.paper.inverse.findings import InverseFindings
from cobilevel.paper.inverse.verdicts import _reached, inverse_verdicts
from cobilevel.paper.lab import Budget, Method
from cobilevel.paper.statistics import ratio
from cobilevel.paper.tuning import Grid, SearchRung, edges, searched
from cobilevel.sweep import Run, Runs

COUNT = 6
SIZES, CELLS = (3, 5, 10, 20), (3, 5, 10, 20, 50, 100)


def as_claimed(family, N):
    """``(F/F_ref, Delta_y)`` as the paper has them."""
    if family == "Partition":
        return 1 + 2.5 / N if N < 100 else 1.001, 0.3 / N
    error = 1e-2 * 0.5**N if family != "Monomial" else 1e-2 * 0.5 ** min(N, 5)
    return (1.02 if N < 10 else 1.001), error


def findings(folder, world, newton=as_claimed, outlier=None):
    """The inverse experiment with made-up results: small noise by instance, and perhaps one instance gone wrong."""
    budget = Budget(COUNT, 100, 50, (SearchRung(1, 1, 50),), Grid(), SIZES, CELLS)
    lab = Inverse(budget, Runs(folder))
    rng = np.random.default_rng(0)
    made = []
    for method, count in lab.plan():
        for seed in range(count):
            loss, error = (world if method.solver == "StocBiO" else newton)(method.family, method.N)
            if outlier is not None and method.solver == "StocBiO" and seed == outlier:
                loss = 5.0
            shake = 1 + 1e-4 * rng.normal()
            made.append(
                Run(lab.spec(method, seed), {"loss": loss * shake, "loss_true": 1.0, "policy_error": error * shake})
            )
    lab.runs.add(made)
    return InverseFindings(lab)


def verdicts(found):
    return {entry["id"]: entry["verdict"] for entry in inverse_verdicts(found)}


def test_all_hold_where_all_is_as_claimed(tmp_path):
    assert verdicts(findings(tmp_path, as_claimed)) == dict.fromkeys(("I1", "I2", "I3", "I4", "I5"), "holds")


def changed(change):
    def world(family, N):
        loss, error = as_claimed(family, N)
        return change(family, N, loss, error)

    return world


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("I1", lambda f, N, loss, error: (1.2 if N == 3 and f == "Fourier" else loss, error)),
        ("I1", lambda f, N, loss, error: (1.01 if N == 3 and f == "Partition" else loss, error)),
        ("I2", lambda f, N, loss, error: (1.04 if N == 5 and f == "Monomial" else loss, error)),
        ("I2", lambda f, N, loss, error: (1.01 if N >= 20 and f == "Partition" else loss, error)),
        ("I3", lambda f, N, loss, error: (loss, 1e-2 * 0.5**N if f == "Monomial" else error)),
        ("I3", lambda f, N, loss, error: (loss, 1e-6 if f == "Partition" else error)),
        ("I4", lambda f, N, loss, error: (1.01 if f == "Fourier" and N == 20 else loss, error)),
        ("I4", lambda f, N, loss, error: (1.001 if f == "Partition" and N >= 50 else loss, error)),
        ("I4", lambda f, N, loss, error: (loss, 1e-9 if f == "Partition" and N == 100 else error)),
        ("I5", lambda f, N, loss, error: (loss, 3 * as_claimed("Chebyshev", N)[1] if f == "Partition" else error)),
    ],
)
def test_each_fails_in_its_turn(name, change, tmp_path):
    found = findings(tmp_path, changed(change))
    entry = next(entry for entry in inverse_verdicts(found) if entry["id"] == name)
    assert entry["verdict"] == "fails"
    assert "with Newton on the same reduced problems it holds" in entry["why"]


def test_reasons_are_those_of_the_data(tmp_path):
    worse = changed(lambda f, N, loss, error: (1.2 if N == 3 and f == "Fourier" else loss, error))
    both = inverse_verdicts(findings(tmp_path / "both", worse, worse))[0]
    assert "fails too" in both["why"]
    alone = inverse_verdicts(findings(tmp_path / "one", as_claimed, outlier=4))[1]
    assert alone["verdict"] == "fails"
    assert "instance 4 alone decides" in alone["why"]


def test_a_partition_that_gets_worse_again_has_not_arrived(tmp_path):
    back = changed(
        lambda f, N, loss, error: ({20: 1.0, 50: 1.1, 100: 1.0}.get(N, loss) if f == "Partition" else loss, error)
    )
    found = findings(tmp_path, back)
    assert _reached(found, "StocBiO", 1.03) == 100


class Cleaned:
    """A cleaning experiment with made-up results."""

    def __init__(self, validation, training=None, weight=None, pace=None, cold=None):
        self.methods = [Method("StocBiO", f, N) for f in ("Chebyshev", "Fourier", "Monomial") for N in (5, 20)]
        self.methods += [Method("StocBiO", "Partition", N) for N in (5, 20, 50)]
        self.rng = np.random.default_rng(0)
        self.tables = {
            "validation": validation,
            "training": training or validation,
            "weight": weight or (lambda f, N: 0.5),
        }
        self._pace, self._cold = (
            pace or (lambda a, b: 0.5 if a.family == "Chebyshev" else 2.0),
            cold or (lambda m: 100.0),
        )

    def find(self, family, N):
        return next(m for m in self.methods if (m.family, m.N) == (family, N))

    def sizes(self, family):
        return [m.N for m in self.methods if m.family == family]

    def values(self, method, name):
        return self.tables[name](method.family, method.N) * (1 + 1e-4 * self.rng.normal(size=5))

    def pace(self, ours, theirs):
        return ratio(self._pace(ours, theirs) * (1 + 1e-3 * self.rng.normal(size=5)), np.ones(5))

    def curve(self, method, name):
        rise = {"training": 1.0, "weight": 0.3}[name] if method.family == "Partition" else 0.0
        return 1 + rise * np.linspace(0, 1, 10) + 1e-4 * self.rng.normal(size=(5, 10))

    def by_temperature(self, method, name):
        if name == "exact":
            return np.ones((5, 4, 3))
        first = self._cold(method) if method.family == "Partition" else 1.0
        return np.array([first, 0.1, 0.1, 0.1]) * (1 + 1e-4 * self.rng.normal(size=(5, 4)))


def as_the_paper(family, N):
    level = {"Chebyshev": 0.8, "Fourier": 0.801, "Monomial": 0.85 if N == 5 else 1.5}
    return level[family] if family in level else {5: 1.4, 20: 1.2, 50: 1.0}[N]


def cleaned(**options):
    found = cleaning_verdicts(Cleaned(**({"validation": as_the_paper} | options)))
    return {entry["id"]: entry for entry in found}


def test_cleaning_as_claimed_and_otherwise():
    assert {entry["verdict"] for entry in cleaned().values()} == {"holds"}
    other = lambda name, N0, value: lambda f, N: value if (f, N) == (name, N0) else as_the_paper(f, N)
    assert cleaned(validation=other("Partition", 50, 1.6))["H1"]["why"].startswith("Partition(50) ends higher")
    assert cleaned(training=other("Partition", 5, 0.7))["H2"]["verdict"] == "fails"
    lost = cleaned(training=other("Partition", 50, 0.7))["H3"]
    assert lost["verdict"] == "fails"
    assert "weighted: Partition(50) (mean weight 0.5)" in lost["why"]
    assert cleaned(validation=other("Monomial", 20, 0.8))["H4"]["verdict"] == "fails"
    assert cleaned(validation=other("Fourier", 5, 0.9))["H5"]["why"] == "Further apart at N = 5."
    assert cleaned(cold=lambda m: 0.01)["H6"]["verdict"] == "fails"
    slow = cleaned(pace=lambda a, b: 1.5)
    assert "Not shown to be faster" in slow["H3"]["why"]
    assert slow["H1"]["verdict"] == "holds"


def test_complexity_is_judged_by_both_fits():
    def judged(low, late, power):
        one = {
            "value": -2.5,
            "low": low,
            "high": -2.0,
            "late": (late, late - 0.1, late + 0.1),
            "norms": (1.0, 0.05),
            "samples": (1e3, 1e6),
        }
        return complexity_verdict({"slopes": {"convex": one}, "growth": (power, 0.1), "reached": True})["verdict"]

    assert judged(-2.7, -2.8, 0.8) == "holds"
    assert judged(-3.2, -2.8, 0.8) == "fails"
    assert judged(-2.7, -3.4, 0.8) == "fails"
    assert judged(-2.7, -2.8, 5.0) == "fails"


def test_ends_of_the_grid_are_named():
    assert edges({"inner": 1e-3, "outer": 1.0}) == ("0.001 (end of the grid)", "1")
    assert edges({"inner": 0.1, "outer": 1e5}) == ("0.1", "100000 (end of the grid)")
    assert searched(Grid()).startswith("The grid of the paper")
    assert searched(Grid((1.0,), (1.0,), (1,))).startswith("1 settings")
