"""Certificates do not depend on units of ``y``, and withhold what second order does not tell."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb


def certified(unit, steep, curves=1.0):
    rng = np.random.default_rng(0)
    draw = lambda: cb.Samples(rng.uniform(-1, 1, 400), 0.1 * rng.normal(size=(400, 2)))
    wavy = lambda x, xi: x + jnp.sin(jnp.asarray([3.0, 5.0]) * xi)

    def lower(x, y, xi, eta):
        off = y / unit - wavy(x, xi) - eta
        return jnp.sum(off**2 / 2 + steep * off**4)

    upper = lambda x, y, xi, eta: curves * (jnp.sum((y / unit - 1) ** 2) / 2 + x**2 / 2)
    problem = cb.Problem(upper, lower, 0.0, jnp.zeros(2), cb.Interval(-1, 1))
    solution = cb.solve(problem, draw(), basis=cb.Chebyshev(2))
    xi = np.linspace(-1, 1, 2001)
    y = float(solution.x) + np.sin(np.array([3.0, 5.0]) * xi[:, None])
    truth = curves * (np.mean(np.sum((y - 1) ** 2, axis=1)) / 2 + float(solution.x) ** 2 / 2)
    off = np.asarray(solution.policy(xi)) - unit * y
    return cb.certify(problem, solution, draw()), truth, float(np.mean(np.sum(off**2, axis=1)))


@pytest.mark.parametrize("unit", [np.array([1.0, 1.0]), np.array([1e-4, 1e4]), np.array([1e3, 1e-2])])
def test_the_units_of_y_do_not_matter(unit):
    certificate, truth, off = certified(unit, 0.0)
    assert not certificate.unresolved
    assert abs(certificate.objective - truth) < 4 * certificate.objective.error
    assert abs(certificate.policy_error - off) < 4 * certificate.policy_error.error


@pytest.mark.parametrize("curves", [1.0, 1e8])
def test_an_expansion_that_fails_prints_no_number(curves):
    certificate, _, _ = certified(np.ones(2), 3.0, curves)
    assert "second order does not tell" in certificate.unresolved
    assert certificate.objective is None
    assert certificate.regret is None
    assert certificate.policy_error is None
    assert certificate.reduced_objective is not None
    assert certificate.stationary(1.0) is None
    assert "not known" in repr(certificate)
    assert "not corrected" in repr(certificate)
