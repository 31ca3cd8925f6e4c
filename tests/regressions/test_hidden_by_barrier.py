"""Under inequalities: constraints that are not convex, and a lower level without curvature of its own, are said.

Cases that differ in numbers alone are members of one family, so that they share compiled programs: with a barrier these
take a second each.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from problems import numbers, only

RNG = np.random.default_rng(0)
XI = RNG.uniform(size=60)
NOISE = 0.1 * RNG.normal(size=60)
LINE = cb.Interval(0.0, 1.0)


class Curve(eqx.Module):
    """A lower level in a single ``y``: ``slope . (1, xi, x, x^2, x xi) y + square y^2 + cube y^3``, and ``noise eta y``
    where noise is given; at contexts above `above` it is ``(y - xi)^2``."""

    slope: jax.Array = eqx.field(converter=numbers, default=(0.0, 0.0, 0.0, 0.0, 0.0))
    square: jax.Array = eqx.field(converter=numbers, default=0.0)
    cube: jax.Array = eqx.field(converter=numbers, default=0.0)
    above: jax.Array = eqx.field(converter=numbers, default=2.0)
    noise: jax.Array | None = None

    def __call__(self, x, y, xi, eta):
        slope = self.slope @ jnp.stack([jnp.ones_like(xi), xi, x, x**2, x * xi])
        slope = slope if self.noise is None else slope + self.noise * eta
        return jnp.where(xi > self.above, (y - xi) ** 2, slope * y + self.square * y**2 + self.cube * y**3)


class Pair(eqx.Module):
    """A lower level in two: ``y . slopes (1, xi, x, x xi) + y . squares y``."""

    slopes: jax.Array = eqx.field(converter=numbers)
    squares: jax.Array = eqx.field(converter=numbers)

    def __call__(self, x, y, xi, eta):
        return y @ self.slopes @ jnp.stack([jnp.ones_like(xi), xi, x, x * xi]) + y @ self.squares @ y


class Limit(eqx.Module):
    """A constraint on a single ``y``: ``terms . (1, y, y^2, y^3, xi, xi^2, xi y) + wave sin(6 y) + rise exp(3 y)``."""

    terms: jax.Array = eqx.field(converter=numbers, default=(0.0,) * 7)
    wave: jax.Array = eqx.field(converter=numbers, default=0.0)
    rise: jax.Array = eqx.field(converter=numbers, default=0.0)

    def __call__(self, x, y, xi):
        terms = self.terms @ jnp.stack([jnp.ones_like(y), y, y**2, y**3, xi, xi**2, xi * y])
        return terms + self.wave * jnp.sin(6 * y) + self.rise * jnp.exp(only(self.rise, 3 * y))


class Ball(eqx.Module):
    """Within it, or outside of it where the scale is negative."""

    scale: jax.Array = eqx.field(converter=numbers)

    def __call__(self, x, y, xi):
        return self.scale * (jnp.sum(y**2) - 1)


def solved(lower, constraints, y0, best=0.0):
    upper = lambda x, y, xi, eta: jnp.sum((y - 1.0) ** 2) + 4 * (x - best) ** 2
    problem = cb.Problem(upper, lower, 0.5, y0, LINE, constraints=constraints)
    return cb.solve(problem, cb.Samples(XI, NOISE), basis=cb.Chebyshev(4))


def quick(cases, slow):
    """The names of cases, the one that takes longest left to thorough runs."""
    return [pytest.param(name, marks=pytest.mark.thorough if name == slow else ()) for name in cases]


def nearest(x, y, xi, eta):
    return jnp.sum((y - xi - x - eta) ** 2)


TWO = np.array([1.0, 0.5])
HOLES = {
    "waves": (Limit(wave=1.0), 0.0),
    "outside of a ball": (Ball(-1.0), TWO),
    "a gap": (Limit([0.01, 0, -1, 0, 0, -1, 2]), 0.0),  # (y - xi)^2 >= 0.01
    "a ring": (lambda x, y, xi: jnp.stack([0.6 - jnp.sum(y**2), jnp.sum(y**2) - 1]), TWO),
}
CONVEX = {
    "linear": (Limit([-0.8, 1, 0, 0, -0.1, 0, 0]), 0.0),
    "nearly flat": (Limit([-0.8, 1, 1e-10, 0, 0, 0, 0]), 0.0),
    "a ball": (Ball(1.0), TWO / 9),
    "a ball in other units": (Ball(1e-6), TWO / 9),
    "log-sum-exp": (lambda x, y, xi: jax.nn.logsumexp(50 * jnp.stack([y - 0.7, -y])) / 50, 0.1),
    "exponential": (Limit([-8.0, 0, 0, 0, 0, 0, 0], rise=1.0), 0.0),
    "a set that is convex": (Limit([-0.5, 0, 0, 1, 0, 0, 0]), 0.0),  # y^3 <= 1/2, though the function is not
    "several": (lambda x, y, xi: jnp.stack([jnp.abs(y) - 0.7, y**4 - 0.5, y - 2 * xi - 1]), 0.0),
}


@pytest.mark.parametrize("name", quick(HOLES, slow="a ring"))
def test_constraints_that_are_not_convex_are_said(name):
    h, y0 = HOLES[name]
    with pytest.warns(UserWarning, match="is not convex in y: at xi = "):
        solution = solved(nearest, [cb.Inequalities(h)], y0)
    assert not solution.converged
    assert "between them does not" in solution.detail


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.filterwarnings("error")
def test_convex_constraints_give_no_alarm(name):
    h, y0 = CONVEX[name]
    assert solved(nearest, [cb.Inequalities(h)], y0).converged


BOX = [cb.Bounds(0.0, 1.0)]
HALF = np.array([0.5, 0.5])
LINEAR = (0.0, 1.0, -0.5, 0.0, 0.0)  # (xi - x / 2) y
FLAT = {
    "linear": (Curve(LINEAR), BOX, 0.5),
    "linear, with noise": (Curve(LINEAR, noise=numbers(1.0)), BOX, 0.5),
    "one of two": (Pair([[0, 1, -0.5, 0], [0, -2, 0, 0]], [[0, 0], [0, 1]]), BOX, HALF),
    # (xi - x / 2) (y_0 - y_1) + (y_0 + y_1 - 1)^2
    "a difference": (Pair([[-2, 1, -0.5, 0], [-2, -1, 0.5, 0]], np.ones((2, 2))), BOX, HALF),
    "on a simplex": (Pair([[0, 1, -0.5, 0], [0, 0, 0, 0]], np.zeros((2, 2))), [cb.Simplex()], HALF),
    "at most contexts": (Curve(LINEAR, above=0.8), BOX, 0.5),
    "nothing": (Curve(), BOX, 0.5),
}
CURVED = {
    "a small term": (Curve((-0.05, 1.0, -0.5, 0.0, 0.0), 0.05), BOX, 0.5),  # and (y - 1/2)^2 / 20
    "held on one side": (Curve((0.2, 1.0, 0.0, 1.0, 0.0)), BOX, 0.5),
    "linear on a ball": (
        lambda x, y, xi, eta: (xi - x / 2) * y[0] + y[1],
        [cb.Inequalities(lambda x, y, xi: jnp.sum(y**2) - 1)],
        HALF / 5,
    ),
    "the larger of two": (
        lambda x, y, xi, eta: y[1] + (y[0] - x) ** 2,
        [cb.Inequalities(lambda x, y, xi: jnp.stack([y[0] - xi - y[1], xi - y[0] - y[1]]))],
        np.array([0.1, 2.0]),
    ),
    "at most contexts": (Curve(LINEAR, above=0.2), BOX, 0.5),
    "outside of a ball that is far away": (
        lambda x, y, xi, eta: jnp.sum((y - xi - 2 * x - eta) ** 2) + y[0] * y[1],
        [cb.Inequalities(lambda x, y, xi: 0.01 - jnp.sum(y**2))],
        HALF * 4,
    ),
    "curved within bounds alone": (Curve((0.5, -1.0, 0.0, 0.0, 0.0), 0.02, 1.0), BOX, 0.5),
    "units": (
        lambda x, y, xi, eta: 1e6 * (y[0] - xi - x) ** 2 + (1e-5 * y[1] - xi) ** 2,
        [cb.Bounds(0.0, np.array([1.0, 1e6]))],
        HALF,
    ),
}


@pytest.mark.parametrize("name", FLAT)
def test_a_lower_level_without_curvature_of_its_own_is_said(name):
    with pytest.warns(UserWarning, match="no curvature in y"):
        solution = solved(*FLAT[name], best=1.0)  # where constraints press from both sides
    assert not solution.converged
    assert "Bounds alone do not give a smooth policy" in solution.detail


BENT = {
    "concave": (Curve((0.6, 0.0, 0.0, 0.0, -1.0), -1.0), BOX, 0.1),  # -(y - 0.3)^2 - x y xi
    "with noise": (Curve((1.2, 0.0, 0.0, 0.0, 0.0), -1.0, noise=numbers(2.0)), BOX, 0.9),  # -(y - 0.6 - eta)^2
    # (y_0 - xi)^2 - (y_1 - 0.3 - x xi)^2
    "one of two": (Pair([[0, -2, 0, 0], [0.6, 0, 0, 2]], [[1, 0], [0, -1]]), BOX, HALF),
    # (y_0 - xi) (y_1 - 0.4)
    "a saddle": (Pair([[-0.4, 0, 0, 0], [0, -1, 0, 0]], [[0, 0.5], [0.5, 0]]), BOX, HALF),
}


@pytest.mark.parametrize("name", BENT)
def test_bounds_do_not_hide_negative_curvature(name):
    """The end of the interval next to the start was given as the minimiser; the other may be lower."""
    with pytest.warns(UserWarning, match="not strongly convex"):
        solution = solved(*BENT[name], best=1.0)
    assert not solution.converged


@pytest.mark.parametrize("name", quick(CURVED, slow="linear on a ball"))
def test_curvature_from_elsewhere_is_enough(name):
    assert solved(*CURVED[name], best=1.0).converged


def test_coordinates_that_a_bound_makes_interact_widen_the_interval_of_an_additive_basis():
    square = cb.Box([0.0, 0.0], [1.0, 1.0])
    upper = lambda x, y, xi, eta: (y - eta) ** 2 * (1 + 2 * xi[0] * xi[1])
    lower = lambda x, y, xi, eta: (y - x * (xi[0] + xi[1]) + 0.3) ** 2
    problem = cb.Problem(upper, lower, 0.8, 0.5, square, constraints=BOX)
    xi, noise = RNG.uniform(size=(512, 2)), 0.03 * RNG.normal(size=512)
    samples = cb.Samples(xi, np.clip(xi.sum(axis=1) - 0.3, 0, 1) + noise)  # what x = 1 gives
    solution = cb.solve(problem, samples, basis=cb.Chebyshev(4, index=cb.Additive()))
    lo, hi = solution.interval
    assert lo <= 1 <= hi
    assert "what a richer basis shows" in str(solution)
