"""Figures that a certificate prints with an interval, over many small sets of samples from a known law.

The mean of a figure's errors says whether its centre is biased. The standard errors printed are compared with the
spread of the figure over a thousand such sets, which was measured once; this file, run as a script,
measures it again. A centre off by one standard error fails, as does a width off by a quarter.

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

RUNS, MANY = 30, 1000
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
    def spread(self):
        return np.std(self.value - self.truth)

    @property
    def width(self):
        """The standard error that is printed, typically."""
        return np.sqrt(np.mean(self.error**2))

    @property
    def covered(self):
        return np.mean((self.low <= self.truth) & (self.truth <= self.high))


def over_sets(runs, problem, basis, law, draw, fitted=None):
    """Every figure over many sets of samples; of the best policy of the basis, or of one `fitted` to each set."""
    rng, rows = np.random.default_rng(0), {}
    known = cb.reduce(problem, basis, draw(rng))
    phi, best = np.asarray(known.basis(law.xi)), law.project(X * moves(law.xi) + level(law.xi))
    given = known.lift(jnp.asarray(X), jnp.asarray(np.linalg.lstsq(phi, best, rcond=None)[0]))
    for _ in range(runs):
        samples = draw(rng)
        solution = given if fitted is None else fitted(given, samples)
        truths = law.truths(np.asarray(solution.policy(law.xi)))
        for name, one in printed(cb.certify(problem, solution, samples)).items():
            rows.setdefault(name, []).append((float(one), one.error, one.low, one.high, truths[name]))
    return {name: Figure(*np.array(table).T) for name, table in rows.items()}


def on_the_line(runs, spread, objective, rows=200):
    """Two polynomials, of which the problem needs three."""
    nodes, w = np.polynomial.legendre.leggauss(20)
    xi = (nodes + 1) / 2
    draw = lambda rng: cb.Samples(rng.uniform(size=rows), spread * rng.normal(size=(rows, 3)))
    law = Law(xi, w / 2, np.vander(xi, 2), spread)
    return over_sets(runs, cb.Problem(upper, objective, X, 0.0, LINE), cb.Monomial(2), law, draw)


def mean_of_each_group(given, samples):
    """The policy fitted to the samples at ``X``, all groups of which are alike in size."""
    xi, (a, b, _) = np.asarray(samples.xi), np.asarray(samples.eta).T
    means = np.mean((X * (moves(xi) + b) + level(xi) + a).reshape(len(GROUPS), -1), axis=1)
    return replace(given, W=jnp.asarray(np.linalg.solve(np.asarray(given.basis(GROUPS)), means)), precise=None)


def in_groups(runs, each=8):
    """A few samples a group, and one function for each: the fit takes part of the noise, which both levels have."""
    mixed = 0.7 * np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -0.8], [0.0, 0.0, 0.6]])
    draw = lambda rng: cb.Samples(np.repeat(GROUPS, each), rng.normal(size=(20 * each, 3)) @ mixed)
    law = Law(GROUPS, np.full(20, 1 / 20), np.eye(20), np.full(3, 0.7))
    problem = cb.Problem(upper, lower, X, 0.0, cb.Finite(GROUPS))
    return over_sets(runs, problem, cb.Categorical(), law, draw, mean_of_each_group)


@cache
def figures(kind, runs=RUNS):
    if kind == "groups":
        return in_groups(runs)
    noise = np.array([0.5, 0.5, 0.5] if kind == "neighbours" else [0.0, 0.0, 0.7])
    return on_the_line(runs, noise, lower if kind == "neighbours" else lower_without_noise)


# Over MANY sets: the spread of each, and the standard error that was printed, typically.
MEASURED = {
    ("neighbours", "objective"): (0.206, 0.207),
    ("neighbours", "gradient"): (0.421, 0.424),
    ("neighbours", "reduced gradient"): (0.392, 0.419),
    ("neighbours", "gap"): (0.0254, 0.0275),
    ("neighbours", "policy error"): (0.0199, 0.0223),
    ("neighbours", "adjoint error"): (0.0239, 0.0234),
    ("neighbours", "sensitivity error"): (0.0235, 0.0233),
    ("neighbours", "lower objective"): (0.0146, 0.0147),
    ("neighbours", "regret"): (0.0463, 0.0527),
    ("neighbours", "from the basis"): (0.000338, 0.000388),
    ("neighbours", "step"): (0.0567, 0.0629),
    ("exact", "objective"): (0.199, 0.199),
    ("exact", "gradient"): (0.41, 0.413),
    ("exact", "reduced gradient"): (0.384, 0.41),
    ("exact", "gap"): (0.0129, 0.013),
    ("exact", "policy error"): (0.00217, 0.00213),
    ("exact", "adjoint error"): (0.0234, 0.0258),
    ("exact", "sensitivity error"): (0.00382, 0.00379),
    ("exact", "lower objective"): (0.00108, 0.00106),
    ("exact", "regret"): (0.0454, 0.0516),
    ("exact", "from the basis"): (0.000171, 0.000173),
    ("exact", "step"): (0.0558, 0.0619),
    ("groups", "objective"): (0.205, 0.205),
    ("groups", "gradient"): (0.149, 0.149),
    ("groups", "reduced gradient"): (0.149, 0.15),
    ("groups", "policy error"): (0.0223, 0.0208),
    ("groups", "step"): (0.0822, 0.0896),
}


def as_measured(figure, width):
    """Whether a figure is centred and as wide as it was over many sets."""
    return abs(figure.bias) < 0.5 and abs(figure.width / width - 1) < 0.12 and figure.covered >= 0.8


@pytest.mark.parametrize(("kind", "name"), MEASURED)
def test_centre_and_width(kind, name):
    """And the test would notice: a centre off by one standard error, a width off by a quarter."""
    figure, (spread, width) = figures(kind)[name], MEASURED[kind, name]
    assert 0.9 < width / spread < 1.15
    assert as_measured(figure, width)
    for error in (0.75 * figure.error, 1.25 * figure.error):
        assert not as_measured(figure._replace(error=error), width)
    for value in (figure.value - figure.error, figure.value + figure.error):
        assert not as_measured(figure._replace(value=value), width)


if __name__ == "__main__":
    for kind, name in MEASURED:
        figure = figures(kind, MANY)[name]
        print(f'    ("{kind}", "{name}"): ({figure.spread:.3g}, {figure.width:.3g}),')
