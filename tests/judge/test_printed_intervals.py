"""Figures that a certificate prints with an interval, over many small sets of samples from a known law.

The mean of a figure's errors says whether its centre is biased; their spread, over the standard errors printed, whether
these are too wide or too narrow; how often its interval holds the truth, whether that is made of them in the right way.
A centre off by one standard error fails, as does a width off by a quarter.

The lower level is a regression with noise `a`, and noise `b` in how it follows ``x``; the upper one has noise `c`.
Curvatures are constant, so that truths are integrals of polynomials. The decision lies near the minimum, so that the
noise of the curvature hardly matters for the step there.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from problems import LINE

RUNS = 100
X, CURVE, RIDGE = 0.25, 3.0, 0.3
GROUPS = np.linspace(0, 0.1, 20)  # so near that contexts add hardly any noise, each with as many samples


def moves(xi):
    return 1 + 0.5 * xi + CURVE * xi**2


def level(xi):
    return 0.2 + xi + CURVE / 2 * xi**2


def tilt(xi):
    return CURVE * xi**2 - 3


def target(xi):
    return 1 - xi


def lower(x, y, xi, eta):
    return (y - x * (moves(xi) + eta[1]) - level(xi) - eta[0]) ** 2 / 2


def lower_without_noise(x, y, xi, eta):
    return (y - x * moves(xi) - level(xi)) ** 2 / 2


def upper(x, y, xi, eta):
    return (y - target(xi) - eta[2]) ** 2 / 2 + tilt(xi) * y + RIDGE * x**2


class Law(NamedTuple):
    """Contexts with their probabilities, the functions of a basis there, and the spread of a, b and c."""

    xi: np.ndarray
    weight: np.ndarray
    phi: np.ndarray
    spread: np.ndarray

    def project(self, values):
        phi, w = self.phi, self.weight
        return phi @ np.linalg.solve(phi.T @ (w[:, None] * phi), phi.T @ (w * values))

    def truths(self, policy):
        """All figures at ``X``, for a policy given by its values at the contexts."""
        xi, w = self.xi, self.weight
        s, t, y = moves(xi), tilt(xi) - target(xi), X * moves(xi) + level(xi)
        best, pull = self.project(y), lambda at, along: w @ ((at + t) * along) + 2 * RIDGE * X
        stated, reduced, bend = pull(y, s), pull(best, self.project(s)), w @ s**2 + 2 * RIDGE
        rest = lambda v: w @ (v - self.project(v)) ** 2
        values = ((y - target(xi)) ** 2 + self.spread[2] ** 2) / 2 + tilt(xi) * y + RIDGE * X**2
        return {
            "objective": w @ values,
            "gradient": stated,
            "reduced gradient": abs(reduced),
            "gap": abs(stated - reduced),
            "policy error": w @ (y - policy) ** 2,
            "adjoint error": rest(best + t),
            "sensitivity error": rest(s),
            "lower objective": (w @ (y - policy) ** 2 + self.spread[0] ** 2 + X**2 * self.spread[1] ** 2) / 2,
            "regret": stated**2 / bend / 2,
            "from the basis": (stated - reduced) ** 2 / bend / 2,
            "step": -stated / bend,
        }


def printed(found):
    """What a certificate prints, by name."""
    regret, gradient = found.regret, float(np.asarray(found.gradient))
    return {
        "objective": found.objective,
        "gradient": cb.Estimate.of(gradient, found.gradient_norm.error),
        "reduced gradient": found.reduced_gradient_norm,
        "gap": found.hypergradient_gap,
        "policy error": found.policy_error,
        "adjoint error": found.adjoint_error,
        "sensitivity error": found.sensitivity_error,
        "lower objective": found.lower_loss,
        "regret": regret.total,
        "from the basis": regret.basis,
        "step": cb.Estimate.of(regret.step[0], regret.step_error[0]),
    }


class Figure(NamedTuple):
    """One figure over all sets: its values, standard errors and intervals, and the truth of each."""

    value: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    truth: np.ndarray

    @property
    def bias(self):
        """In standard errors."""
        return np.mean(self.value - self.truth) / np.sqrt(np.mean(self.error**2))

    @property
    def ratio(self):
        """The spread of the errors over the standard error."""
        return np.std(self.value - self.truth) / np.sqrt(np.mean(self.error**2))

    @property
    def covered(self):
        return np.mean((self.low <= self.truth) & (self.truth <= self.high))


def over_sets(problem, basis, law, draw, fitted=None):
    """Every figure over many sets of samples; of the best policy of the basis, or of one `fitted` to each set."""
    rng, rows = np.random.default_rng(0), {}
    known = cb.reduce(problem, basis, draw(rng))
    phi, best = np.asarray(known.basis(law.xi)), law.project(X * moves(law.xi) + level(law.xi))
    given = known.lift(jnp.asarray(X), jnp.asarray(np.linalg.lstsq(phi, best, rcond=None)[0]))
    for _ in range(RUNS):
        samples = draw(rng)
        solution = given if fitted is None else fitted(given, samples)
        truths = law.truths(np.asarray(solution.policy(law.xi)))
        for name, one in printed(cb.certify(problem, solution, samples)).items():
            rows.setdefault(name, []).append((float(one), one.error, one.low, one.high, truths[name]))
    return {name: Figure(*np.array(table).T) for name, table in rows.items()}


def on_the_line(spread, objective, rows=200):
    """Two polynomials, of which the problem needs three."""
    nodes, w = np.polynomial.legendre.leggauss(20)
    xi = (nodes + 1) / 2
    draw = lambda rng: cb.Samples(rng.uniform(size=rows), spread * rng.normal(size=(rows, 3)))
    law = Law(xi, w / 2, np.vander(xi, 2), spread)
    return over_sets(cb.Problem(upper, objective, X, 0.0, LINE), cb.Monomial(2), law, draw)


def mean_of_each_group(given, samples):
    """The policy fitted to the samples at ``X``, all groups of which are alike in size."""
    xi, (a, b, _) = np.asarray(samples.xi), np.asarray(samples.eta).T
    means = np.mean((X * (moves(xi) + b) + level(xi) + a).reshape(len(GROUPS), -1), axis=1)
    return replace(given, W=jnp.asarray(np.linalg.solve(np.asarray(given.basis(GROUPS)), means)), precise=None)


def in_groups(each=8):
    """A few samples a group, and one function for each: the fit takes part of the noise, which both levels have."""
    mixed = 0.7 * np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -0.8], [0.0, 0.0, 0.6]])
    draw = lambda rng: cb.Samples(np.repeat(GROUPS, each), rng.normal(size=(20 * each, 3)) @ mixed)
    law = Law(GROUPS, np.full(20, 1 / 20), np.eye(20), np.full(3, 0.7))
    problem = cb.Problem(upper, lower, X, 0.0, cb.Finite(GROUPS))
    return over_sets(problem, cb.Categorical(), law, draw, mean_of_each_group)


SETS = {
    "neighbours": cache(lambda: on_the_line(np.array([0.5, 0.5, 0.5]), lower)),
    "exact": cache(lambda: on_the_line(np.array([0.0, 0.0, 0.7]), lower_without_noise)),
    "groups": cache(in_groups),
}
NAMES = ["objective", "gradient", "reduced gradient", "gap", "policy error", "adjoint error", "sensitivity error"]
NAMES += ["lower objective", "regret", "step"]
CASES = [(kind, name) for kind in ("neighbours", "exact") for name in NAMES]
CASES += [("groups", name) for name in ("objective", "gradient", "reduced gradient", "policy error")]
# A product of two neighbours counts what they have in common for each of them, and a mean square of a richer basis the
# noise of contexts, which its own norm takes up in part: their standard errors are up to a third too wide.
CAREFUL = {("neighbours", "gap"), ("exact", "adjoint error")}


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_centre_and_width(kind, name):
    figure = SETS[kind]()[name]
    low, high = (0.65, 0.95) if (kind, name) in CAREFUL else (0.82, 1.19)
    assert abs(figure.bias) < 0.5
    assert low < figure.ratio < high
    assert figure.covered >= 0.88
