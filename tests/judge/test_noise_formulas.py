"""The noise that certificates and standard errors count, against the same formulas in NumPy.

The lower level is a regression whose curvature is 1, with noise `a`, and noise `b` in how it follows ``x``; the upper
one has noise `c`. Policy, adjoint and sensitivity are then least squares fits to columns of numbers.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import cobilevel as cb
from cobilevel.judge.comparison import split_rows
from problems import LINE

X, RIDGE, SPREAD = 0.4, 0.3, np.array([0.5, 0.3, 0.8])


def moves(xi):
    return 1 + 0.5 * xi


def level(xi):
    return 0.2 + xi


def tilt(xi):
    return 0.3 - 0.2 * xi


def lower(x, y, xi, eta):
    return (y - x * (moves(xi) + eta[1]) - level(xi) - eta[0]) ** 2 / 2


def upper(x, y, xi, eta):
    return (y - eta[2]) ** 2 / 2 + tilt(xi) * y + RIDGE * x**2


def conditional(key, xi, size):
    return jnp.asarray(SPREAD) * jax.random.normal(key, (size, 3))


def stated(**options):
    return cb.Problem(upper, lower, X, 0.0, LINE, **options)


def drawn(rows, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(size=rows), SPREAD * rng.normal(size=(rows, 3))


def at(problem, samples, W=(1.0, 1.0)):
    """A decision and a policy that were not solved for."""
    return cb.reduce(problem, cb.Monomial(2), samples).lift(jnp.asarray(X), jnp.asarray(W))


# -- crossed data: contexts and data are drawn apart, and both have noise

CONTEXTS, DATA = 10, 20  # few contexts, so that their noise shows; of one size, so that what crosses them is shared


def crossed(x, xi, eta):
    """What each context with each row of data contributes to the value and to its slope, policy and adjoint exact."""
    (a, b, c), p = eta.T, moves(xi)[:, None]
    slope = p + b.mean()
    y = x * slope + level(xi)[:, None] + a.mean()
    r, pull = y - x * (p + b) - level(xi)[:, None] - a, y - c + tilt(xi)[:, None]
    v = pull.mean(axis=1, keepdims=True)
    value = (y - c) ** 2 / 2 + tilt(xi)[:, None] * y + RIDGE * x**2 - v * r
    rows = slope * pull + 2 * RIDGE * x - slope * r - v * (b.mean() - b)
    return value, rows, np.mean(slope**2) + 2 * RIDGE


def noise(table, contexts=True):
    """Of the mean of a table: over its columns, and over its rows where they were drawn too."""
    parts = [table.mean(axis=k) for k in ((0, 1) if contexts else (0,))]
    return np.sqrt(sum(np.var(part) / len(part) for part in parts))


@pytest.mark.parametrize("known", [False, True])
def test_crossed_data_have_the_noise_of_contexts_and_of_data(known):
    """That of data alone where the law of contexts is known, and integrated over."""
    xi, (_, eta) = drawn(CONTEXTS)[0], drawn(DATA, 1)
    solution = cb.solve(stated(), cb.Product(cb.Uniform(LINE) if known else xi, eta), basis=cb.Monomial(2))
    if known:
        xi = (np.arange(2000) + 0.5) / 2000
    value, rows, bend = crossed(float(solution.x), xi, eta)
    assert rows.mean() == pytest.approx(0, abs=1e-6)
    assert solution.uncertainty.value == pytest.approx(value.mean(), rel=1e-6)
    assert solution.uncertainty.value_error == pytest.approx(noise(value, not known), rel=1e-5)
    assert solution.standard_error == pytest.approx(noise(rows, not known) / bend, rel=1e-4)


@pytest.mark.parametrize("known", [False, True])
def test_the_certificate_of_crossed_data_counts_each_noise_once(known):
    """Twenty rows of data, each left out in turn."""
    xi, (_, eta) = drawn(CONTEXTS)[0], drawn(DATA, 1)
    data = cb.Product(cb.Uniform(LINE) if known else xi, eta)
    found = cb.certify(stated(), at(stated(), data), data)
    if known:
        xi = (np.arange(2000) + 0.5) / 2000
    value, rows, bend = crossed(X, xi, eta)
    over_contexts, over_data = (np.var(rows.mean(axis=k), ddof=1) / rows.shape[1 - k] for k in (1, 0))
    error = np.sqrt(over_data + (0 if known else over_contexts))
    assert found.mode == "exact"
    assert float(found.gradient) == pytest.approx(rows.mean(), rel=1e-6)
    assert found.gradient_norm.error == pytest.approx(error, rel=0.05)
    assert found.reduced_gradient_norm.error == pytest.approx(noise(rows, not known), rel=1e-4)
    assert found.regret.step == pytest.approx(-rows.mean() / bend, rel=1e-6)
    assert found.regret.step_error == pytest.approx(error / bend, rel=0.05)
    assert float(found.objective) == pytest.approx(value.mean(), rel=1e-6)


def test_crossed_data_without_noise_below_have_that_of_contexts_and_of_data():
    xi, (_, eta) = drawn(CONTEXTS)[0], drawn(DATA, 1)
    eta = eta * [0.0, 0.0, 1.0]
    quiet = lambda x, y, xi, eta: (y - x * moves(xi) - level(xi)) ** 2 / 2
    problem, data = cb.Problem(upper, quiet, X, 0.0, LINE), cb.Product(xi, eta)
    found, (_, rows, _) = cb.certify(problem, at(problem, data), data), crossed(X, xi, eta)
    over_contexts, over_data = (np.var(rows.mean(axis=k), ddof=1) / rows.shape[1 - k] for k in (1, 0))
    assert float(found.gradient) == pytest.approx(rows.mean(), rel=1e-6)
    assert found.gradient_norm.error == pytest.approx(np.sqrt(over_contexts + over_data), rel=1e-6)


# -- exact lower-level solutions by draws


@pytest.mark.parametrize("judge", ["certify", "evaluate"])
@pytest.mark.parametrize("draws", [2, 16])
def test_the_noise_of_draws_is_no_error_of_the_policy(judge, draws):
    """The policy is off by a constant; solutions at each context are means over few draws, whose noise is taken off."""
    xi, eta = drawn(800)
    problem, samples, aside = stated(conditional=conditional), cb.Samples(xi, eta), 0.05
    exact = cb.reduce(problem, cb.Monomial(2), samples).lift(jnp.asarray(X), jnp.zeros(2))
    coefficients = np.linalg.lstsq(np.asarray(exact.basis(xi)), X * moves(xi) + level(xi) + aside, rcond=None)[0]
    solution = at(problem, samples, coefficients)
    found = getattr(cb, judge)(problem, solution, samples, draws=draws).policy_error
    sampled = (SPREAD[0] ** 2 + X**2 * SPREAD[1] ** 2) / draws
    each = np.sqrt(4 * aside**2 * sampled + 2 * sampled**2 * (1 + 1 / (draws - 1)))  # of the error at one context
    assert found.error == pytest.approx(each / np.sqrt(800), rel=0.15)
    assert abs(found - aside**2) < 2 * each / np.sqrt(800) < sampled / 4


# -- groups of samples left out


class Fitted:
    """The reduced problem on weighted samples: policy, adjoint, sensitivity and gradient, at the samples."""

    def __init__(self, phi, shares, xi, eta):
        a, b, c = eta.T
        gram = phi.T @ (shares[:, None] * phi)
        fit = lambda column: phi @ np.linalg.solve(gram, phi.T @ (shares * column))
        self.policy, self.sensitivity = fit(X * (moves(xi) + b) + level(xi) + a), fit(moves(xi) + b)
        self.pull = self.policy - c + tilt(xi)
        self.adjoint, self.residual = fit(self.pull), self.policy - X * (moves(xi) + b) - level(xi) - a
        self.gradient = shares @ (self.pull * self.sensitivity) + 2 * RIDGE * X


def jackknifed(figures, rows):
    """The standard errors of figures, from groups of samples left out in turn."""
    group, left_out = split_rows(rows, np.random.default_rng(0)), []
    for k in range(20):
        kept = (group != k) / np.sum(group != k)
        left_out.append(figures(kept))
    return np.sqrt(19 / 20 * np.sum((np.array(left_out) - np.mean(left_out, axis=0)) ** 2, axis=0))


def test_the_gradient_of_the_reduced_problem_and_its_noise():
    xi, eta = drawn(20)
    samples, phi = cb.Samples(xi, eta), np.vander(xi, 2)
    found = cb.certify(stated(), at(stated(), samples), samples, mode="held-out")
    gradient = lambda shares: Fitted(phi, shares, xi, eta).gradient
    assert float(found.gradient) == pytest.approx(gradient(np.full(20, 1 / 20)), rel=1e-6)
    here, little = np.full(20, 1 / 20), 1e-6  # each sample counted a little more
    moved = [(gradient((1 - little) * here + little * row) - gradient(here)) / little / 20 for row in np.eye(20)]
    assert found.gradient_norm.error == pytest.approx(float(np.linalg.norm(moved)), rel=1e-4)


def test_a_richer_basis_and_its_noise():
    """Four polynomials against two: differences of fits, less what noise of the richer one adds to their squares."""
    xi, eta = drawn(200)
    samples = cb.Samples(xi, eta)
    found = cb.certify(stated(), solution := at(stated(), samples), samples, mode="enriched")
    assert "Monomial(4)" in found.compared
    poor, rich, given = np.vander(xi, 2), np.vander(xi, 4), np.asarray(solution.policy(xi))

    def figures(shares):
        low, high = (Fitted(phi, shares, xi, eta) for phi in (poor, rich))
        apart = (high.policy - given, high.adjoint - low.adjoint, high.sensitivity - low.sensitivity)
        return np.array([high.gradient, high.gradient - low.gradient, *(shares @ part**2 for part in apart)])

    even = np.full(200, 1 / 200)
    value, error, high = figures(even), jackknifed(figures, 200), Fitted(rich, even, xi, eta)
    lengths = 200 * np.sum(np.linalg.qr(rich)[0] ** 2, axis=1)
    of_policy, of_adjoint = (np.sum(lengths * part**2) / 200**2 for part in (high.residual, high.adjoint - high.pull))
    value[2:4] -= of_policy, of_adjoint * (1 - 2 / 4)
    assert float(found.gradient) == pytest.approx(value[0], rel=1e-6)
    assert found.gradient_norm.error == pytest.approx(error[0], rel=1e-5)
    assert found.hypergradient_gap.error == pytest.approx(error[1], rel=1e-5)
    for k, name in enumerate(("policy_error", "adjoint_error", "sensitivity_error"), 2):
        assert float(getattr(found, name)) == pytest.approx(max(value[k], 0), rel=1e-5, abs=1e-12), name
        assert getattr(found, name).error == pytest.approx(error[k], rel=1e-4, abs=1e-12), name


# -- means over samples, and resampling


def test_evaluate_has_the_mean_and_the_error_of_the_mean():
    xi, eta = drawn(50)
    quiet = lambda x, y, xi, eta: (y - x * moves(xi) - level(xi)) ** 2 / 2
    problem, samples = cb.Problem(upper, quiet, X, 0.0, LINE), cb.Samples(xi, eta)
    found = cb.evaluate(problem, solution := at(problem, samples), samples)
    y = X * moves(xi) + level(xi)
    loss = (y - eta[:, 2]) ** 2 / 2 + tilt(xi) * y + RIDGE * X**2
    for one, values in ((found.loss, loss), (found.policy_error, (np.asarray(solution.policy(xi)) - y) ** 2)):
        low, high = stats.t.interval(0.95, 49, values.mean(), stats.sem(values))
        assert (float(one), one.error) == pytest.approx((values.mean(), stats.sem(values)), rel=1e-6)
        assert one.interval == pytest.approx((max(low, 0.0) if values.min() >= 0 else low, high), rel=1e-6)


def test_the_objective_and_its_noise_at_the_answer():
    """The noise of the policy counts to first order: by the adjoint times what the lower level leaves."""
    xi, eta = drawn(400)
    solution = cb.solve(stated(), cb.Samples(xi, eta), basis=cb.Monomial(2))
    x, (a, b, c), phi = float(solution.x), eta.T, np.vander(xi, 2)
    fit = lambda column: phi @ np.linalg.lstsq(phi, column, rcond=None)[0]
    y, slope = fit(x * (moves(xi) + b) + level(xi) + a), fit(moves(xi) + b)
    v, r = fit(y - c + tilt(xi)), y - x * (moves(xi) + b) - level(xi) - a
    value = (y - c) ** 2 / 2 + tilt(xi) * y + RIDGE * x**2 - v * r
    rows = slope * (y - c + tilt(xi)) + 2 * RIDGE * x - slope * r - v * (slope - moves(xi) - b)
    known, bend = solution.uncertainty, np.mean(slope**2) + 2 * RIDGE
    assert known.value == pytest.approx(value.mean(), rel=1e-6)
    assert known.value_error == pytest.approx(np.std(value) / 20, rel=1e-5)
    assert known.error == pytest.approx(np.std(rows) / 20 / bend, rel=1e-4)
    reach = known.interval[:, 0] - (x - known.bias[0])  # with the noise of the curvature, which is little
    assert reach == pytest.approx(1.959964 * known.error[0] * np.array([-1, 1]), rel=0.02)


def test_the_spread_of_resamplings_is_printed_as_it_is():
    xi, eta = drawn(100)
    samples = cb.Samples(xi, eta)
    solution = cb.solve(stated(), samples, basis=cb.Monomial(2))
    spread = cb.bootstrap(stated(), solution, samples, 60, progress=False)
    x = np.asarray(spread.x)
    assert spread.error == pytest.approx(np.std(x, ddof=1))
    assert spread.interval == pytest.approx(np.quantile(x, (0.025, 0.975)))
    assert abs(x.mean() - float(solution.x)) < solution.standard_error / 2
    assert spread.error == pytest.approx(solution.standard_error, rel=0.2)


def test_the_adjoint_seen_by_a_richer_basis_and_its_noise():
    """Products of different rows, along the two functions that the richer basis has beyond the two given."""
    xi, eta = drawn(200)
    quiet = lambda x, y, xi, eta: (y - x * moves(xi) - level(xi)) ** 2 / 2
    problem, samples = cb.Problem(upper, quiet, X, 0.0, LINE), cb.Samples(xi, eta)
    found = cb.certify(problem, at(problem, samples), samples).adjoint_error
    pull = X * moves(xi) + level(xi) - eta[:, 2] + tilt(xi)
    basis = np.linalg.qr(np.vander(xi, 4, increasing=True))[0] * np.sqrt(200)
    white = basis[:, 2:] * (pull - basis[:, :2] @ (basis[:, :2].T @ pull) / 200)[:, None]
    total, own = white.mean(axis=0), np.sum(white**2) / 200**2
    value = (total @ total - own) / (1 - 1 / 200)
    linear = 2 * np.sqrt(np.sum((white @ total - total @ total) ** 2)) / 200
    product = np.sqrt(2 * np.sum((white.T @ white / 200**2) ** 2))
    assert float(found) == pytest.approx(max(value, 0.0), rel=1e-4, abs=1e-9)
    assert found.error == pytest.approx(np.hypot(linear, product), rel=1e-4)
    assert product > linear / 2
