"""Exact answers are computed in double precision whatever JAX is switched to, and the switch is left alone."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.ground import precision

START = """
import warnings; warnings.simplefilter("error")
import jax, jax.numpy as jnp, numpy as np
import cobilevel as cb
assert not jax.config.jax_enable_x64

rng = np.random.default_rng(0)
n = 400
z = rng.uniform(size=n)
experience, income = 40 * z + 3 * rng.normal(size=n), 1e5 * (0.5 + z) + 1e4 * rng.normal(size=n)
X = np.stack([np.ones(n), experience, experience**2, income], axis=1)
wage = X @ np.array([1.0, 0.05, -1e-3, 2e-5]) + 0.3 * rng.normal(size=n)
Q = np.linalg.qr(np.polynomial.chebyshev.chebvander(2 * z - 1, 5))[0]
truth = np.linalg.lstsq(Q.T @ X, Q.T @ wage, rcond=None)[0]
scale = jnp.float32(2.0)  # made in single precision


def upper(x, y, xi, eta):
    return y**2 / scale


def lower(x, y, xi, eta):
    return (y - (eta["wage"] - eta["X"] @ x)) ** 2


problem = cb.Problem(upper, lower, np.zeros(4), 0.0, cb.Interval(0.0, 1.0), x_bounds=(None, 1e6))
samples = cb.Samples(z, {"X": X, "wage": wage})
basis = cb.Chebyshev(6)
"""


def run(code):
    """Runs code in a process in which JAX is switched to single precision, as it is by default."""
    subprocess.run([sys.executable, "-c", START + textwrap.dedent(code)], check=True)


def test_instrumental_variables_with_ill_conditioned_regressors_and_all_digits_of_the_data(tmp_path):
    """In one process, which takes seconds to start: an answer that is exact, and data kept as they are."""
    run(f"""
    solution = cb.solve(problem, samples, basis)
    assert solution.converged
    np.testing.assert_allclose(solution.x, truth, rtol=1e-6)
    np.testing.assert_allclose(solution.precise.x, truth, rtol=1e-7)
    assert "precision" not in solution.choices
    assert {{a.dtype for a in (solution.x, solution.W, solution.policy(0.3))}} == {{np.dtype("float32")}}
    assert np.isfinite(jax.grad(solution.policy)(0.3))

    back = cb.load(solution.save("{tmp_path}/run.npz"), problem)
    for name in ("x", "W", "transform", "constant"):
        assert np.array_equal(getattr(back.precise, name), getattr(solution.precise, name))
    assert np.array_equal(back.x, solution.x) and np.array_equal(back.policy(0.3), solution.policy(0.3))

    begun = cb.solve(problem, samples, basis, steps=1)
    resumed = cb.solve(problem, samples, basis, resume=cb.load(begun.save("{tmp_path}/begun.npz"), problem))
    assert np.array_equal(resumed.precise.x, solution.precise.x)

    found, again = (cb.certify(problem, each, samples, mode="held-out") for each in (solution, back))
    assert found.gradient.dtype == np.float32
    assert np.array_equal(found.gradient, again.gradient)
    assert np.linalg.norm(found.gradient) < 1e-3  # of gradients of single samples of 1e5 and more
    assert cb.bootstrap(problem, solution, samples, replicates=2, progress=False).x.dtype == np.float32
    assert cb.diagnose(problem, basis, samples).rank == 6
    assert not jax.config.jax_enable_x64 and jnp.ones(1).dtype == np.float32

    assert samples.eta["X"].dtype == np.float64 and np.array_equal(samples.eta["X"], X)
    assert problem.x0.dtype == np.float64
    jnp.sum(samples.xi + 1.0)  # usable, in the precision JAX is switched to
    numbered = cb.Samples(z, {{"X": X, "wage": wage, "id": np.arange(n) + 2**40}})
    assert numbered.eta["id"][0] == 2**40
    even = lambda x, y, xi, eta: jnp.where(eta["id"] >= 2**40, 1.0, jnp.nan) * lower(x, y, xi, eta)
    other = cb.Problem(upper, even, np.zeros(4), 0.0, cb.Interval(0.0, 1.0))
    np.testing.assert_allclose(cb.solve(other, numbered, basis).x, truth, rtol=1e-6)
    try:
        cb.reduce(problem, basis, numbered)
    except ValueError as error:
        assert "eta['id']" in str(error) and "32 bits" in str(error)
    else:
        raise AssertionError
    """)


@pytest.mark.thorough
def test_stochastic_solvers_keep_the_callers_precision():
    run("""
    simple = cb.Problem(
        lambda x, y, xi, eta: (y - 1) ** 2 + x**2, lambda x, y, xi, eta: (y - x * xi - eta) ** 2, 1.0, 0.0,
        problem.domain,
    )
    data = cb.Samples(z, rng.normal(size=n))
    single = cb.solve(simple, data, solver=cb.SOBA(), steps=20, batch=8)
    assert "float32" in single.choices["precision"] and "of their size" in single.choices["precision"]
    assert single.precise is None and single.state.leaves[0].dtype == np.float32
    double = cb.solve(simple, data, solver=cb.SOBA(), steps=20, batch=8, precision="double")
    assert "precision" not in double.choices and double.precise.x.dtype == np.float64
    assert double.x.dtype == single.x.dtype == np.float32
    assert double.choices["basis"] == single.choices["basis"]  # chosen in double precision either way
    told = cb.solve(simple, data, basis=cb.Chebyshev(3), precision="single")
    assert "float32" in told.choices["precision"] and told.precise is None
    stream = cb.Stream(lambda key, size: cb.Samples(jax.random.uniform(key, (size,)), jax.random.normal(key, (size,))))
    assert cb.solve(simple, stream, cb.Chebyshev(3)).converged
    assert cb.reduce(simple, cb.Chebyshev(3), data).x0.dtype == np.float32
    """)


def simple(**kinds):
    upper = lambda x, y, xi, eta: (y - 1) ** 2 + x**2
    return cb.Problem(upper, lambda x, y, xi, eta: (y - x * xi - eta) ** 2, np.float32(1), np.float32(0), LINE, **kinds)


LINE = cb.Interval(0.0, 1.0)
FEW = cb.Samples(np.linspace(0, 1, 40, dtype=np.float32), np.sin(np.arange(40, dtype=np.float32)))


def test_what_was_replaced_counts():
    solution = cb.solve(simple(), FEW, cb.Chebyshev(3))
    assert solution.x.dtype == jnp.float32
    moved = replace(solution, x=solution.x + jnp.float32(1))
    assert float(moved.full_parts()[0]) == float(moved.x)
    assert moved.full_parts()[1] is solution.precise.W


def test_precision_is_checked_and_memory_respected(monkeypatch):
    with pytest.raises(ValueError, match="precision must be"):
        cb.solve(simple(), FEW, cb.Chebyshev(3), precision="half")
    monkeypatch.setattr(precision, "memory_limit", lambda: 100.0)
    solution = cb.solve(simple(), FEW, cb.Chebyshev(3))
    assert solution.precise is None
    assert "GiB" in solution.choices["precision"]
    assert jax.config.jax_enable_x64
