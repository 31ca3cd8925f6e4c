"""Convex lower levels that are far from quadratic: penalties, kinks, far starts and units of ``y``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.derivatives import Expansions
from cobilevel.lower.reduced_at_x import solve_lower
from problems import LINE

RNG = np.random.default_rng(1)
XI, NOISE = RNG.uniform(size=400), 0.3 * RNG.normal(size=400)
MIX = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))
UNITS = jnp.array([1e-4, 1.0, 1e4])


def aim(xi, eta):
    return 2 * jnp.sin(5 * xi) + eta


def penalty(weight):
    def lower(x, y, xi, eta):
        return (y - aim(xi, eta)) ** 2 / 2 + weight * jnp.maximum(y - 0.5 - 0.3 * jnp.cos(7 * xi), 0) ** 2

    return lower


def penalties(weight):
    def lower(x, y, xi, eta):
        target = jnp.stack([aim(xi, eta), jnp.cos(3 * xi) + eta, 2 * xi])
        excess = jnp.sum(jnp.maximum(y - 0.6, 0) ** 2) + jnp.maximum(jnp.sum(y) - 1 - xi, 0) ** 2
        return jnp.sum((y - target) ** 2) / 2 + weight * excess

    return lower


def softplus(x, y, xi, eta):
    return 0.05 * (y - aim(xi, eta)) ** 2 + 3 * jnp.logaddexp(1000 * (y - 0.3), 0.0) / 1000


def softmax(x, y, xi, eta):
    shift = jnp.sin(xi * jnp.arange(6.0) + 1) + eta
    return jax.scipy.special.logsumexp(50 * (MIX @ y - shift)) / 50 + 0.01 * jnp.sum(y**2)


def logit(x, y, xi, eta):
    label = jnp.clip((3 * (xi + eta)).astype(int), 0, 2)
    return jax.scipy.special.logsumexp(50 * y) - 50 * y[label] + 0.01 * jnp.sum(y**2)


def huber(x, y, xi, eta):
    gap = jnp.abs(y - aim(xi, eta))
    return jnp.where(gap < 0.1, gap**2 / 2, 0.1 * (gap - 0.05)) + 1e-6 * y**2


def exponential(x, y, xi, eta):
    return jnp.exp(y) - y * (1 + xi + 0.1 * eta**2)


def units(x, y, xi, eta):
    gap = y / UNITS - jnp.stack([aim(xi, eta), -xi, 2 * aim(xi, eta)])
    return jnp.sum(gap**2) / 2 + 100 * jnp.sum(jnp.maximum(y / UNITS - 0.5, 0) ** 2)


CASES = {
    # the lower level, y0, the number of functions
    "a penalty": (penalty(1e3), 0.0, 48),
    "a steep penalty": (penalty(1e6), 0.0, 48),
    "a penalty from far away": (penalty(1e4), 1e3, 16),
    "several penalties": (penalties(1e4), np.zeros(3), 12),
    "several steep penalties": (penalties(1e6), np.zeros(3), 12),
    "a sharp softplus": (softplus, 1e3, 32),
    "a sharp softmax": (softmax, np.zeros(3), 8),
    "a sharp softmax from far away": (softmax, np.full(3, 1e3), 8),
    "a logit from far away": (logit, np.array([1e3, -1e3, 0.0]), 8),
    "no curvature at the start": (huber, 1e3, 16),
    "a curvature that underflows": (exponential, -1e3, 16),
    "components in other units": (units, np.zeros(3), 12),
}


def solved(lower, y0, count, formed):
    """Where ``minimise`` ends, and the Newton step left there relative to the point, both measured by curvature."""
    problem = cb.Problem(lambda x, y, xi, eta: jnp.sum(y**2) + x**2, lower, 0.5, y0, LINE)
    expansions = Expansions(cb.reduce(problem, cb.Chebyshev(count), cb.Samples(XI, NOISE)).whitened().ordinary())
    x, start = expansions.start, expansions.table(expansions.reduced.W0)
    first = np.linalg.norm(expansions.lower(x, start).slope)
    expansions.formed = formed
    found = solve_lower(expansions, x, start, expansions.eps**0.9 * first)
    end = expansions.lower(x, found.point.reshape(start.shape))
    root = np.sqrt(np.diagonal(end.hessian))
    left = np.linalg.solve(end.hessian / np.outer(root, root), end.slope.ravel() / root)
    return found, np.linalg.norm(left) / np.linalg.norm(root * found.point[0])


@pytest.mark.parametrize("name", CASES)
def test_convex_lower_levels_are_solved(name):
    found, left = solved(*CASES[name], formed=True)
    assert found.converged.all()
    assert left < 1e-8
    assert found.evaluations < 300  # those of searches included


@pytest.mark.parametrize("name", ["a penalty", "a sharp softmax", "no curvature at the start"])
def test_without_forming_the_hessian(name):
    lower, y0, count = CASES[name]
    found, left = solved(lower, y0, min(count, 12), formed=False)
    assert found.converged.all()
    assert left < 1e-6
