"""Of many rows, some at random show standard errors; the answer and the objective are those of all."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.answer import job

ROWS, AT = 40_000, np.array([-0.5, 0.3])


@pytest.fixture(scope="module")
def solved():
    rng = np.random.default_rng(0)
    xi, t = rng.uniform(-1, 1, ROWS), rng.normal(size=ROWS)
    samples = cb.Samples(xi, {"t": t, "o": 0.5 * t + rng.normal(size=ROWS)})
    lower = lambda x, y, xi, eta: (y - x[0] - jnp.sin(2 * xi) - eta["t"]) ** 2
    upper = lambda x, y, xi, eta: (y - xi - eta["o"]) ** 2 + 0.1 * x[0] ** 2
    problem = cb.Problem(upper, lower, x0=np.zeros(1), y0=0.0, domain=cb.Interval(-1.0, 1.0))
    solve = lambda solver=None: cb.solve(problem, samples, cb.Chebyshev(4), solver=solver)
    whole = solve()
    return solve, whole, whole.uncertainty, whole.policy_standard_error(AT)


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(job, "SAMPLE_ROWS", 20_000)


def test_errors_are_those_of_all_rows(solved, many):
    solve, whole, known, _ = solved
    some = solve()
    assert np.allclose(some.uncertainty.error, known.error, rtol=0.05)
    assert np.allclose(some.uncertainty.value_error, known.value_error, rtol=0.05)
    assert some.uncertainty.value == pytest.approx(known.value, rel=1e-12)
    assert np.array_equal(some.in_full().x, whole.in_full().x)
    assert "10000 of the rows" in repr(some)
    assert "of the rows" not in repr(whole)


def test_bands_are_those_of_all_rows(solved, many):
    solve, _, _, errors = solved
    assert np.allclose(solve().policy_standard_error(AT), errors, rtol=0.1)


def test_objective_of_another_solver_has_the_error_of_the_rows_looked_at(solved, many):
    solve, _, known, _ = solved
    some = solve(cb.HOAG())
    assert some.uncertainty.value_error == pytest.approx(2 * known.value_error, rel=0.1)
