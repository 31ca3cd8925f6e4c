"""Bounds that cross name the context; strict settings of JAX do not stop a solve; what is not convex is diagnosed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb

RNG = np.random.default_rng(0)
XI, NOISE = RNG.uniform(size=200), 0.1 * RNG.normal(size=200)
SAMPLES = cb.Samples(XI, NOISE)
LINE = cb.Interval(0.0, 1.0)


def stated(lower, y0=0.0, **options):
    upper = lambda x, y, xi, eta: sum(jnp.sum((leaf - x) ** 2) for leaf in jax.tree.leaves(y)) + x**2
    return cb.Problem(upper, lower, 0.5, y0, LINE, **options)


def nearest(x, y, xi, eta):
    return jnp.sum((y - x - xi - eta) ** 2)


@pytest.mark.parametrize(
    ("lo", "hi", "y0", "words"),
    [
        (lambda xi: xi, 0.7, 0.0, r"y must lie between 0\.\d+ and 0\.7"),
        (0.0, lambda xi: 0.95 - xi, 0.0, "y must lie between 0 and -0"),
        (lambda xi: jnp.stack([xi - 1, xi]), np.array([0.9, 0.7]), np.zeros(2), r"y\[1\] must lie between"),
    ],
    ids=["lower", "upper", "one of two"],
)
def test_bounds_that_cross_name_the_context(lo, hi, y0, words):
    where = r"lo lies above hi at \d+ of 200 contexts, first at xi = 0\.\d+, where "
    with pytest.raises(ValueError, match=where + words):
        cb.solve(stated(nearest, y0, constraints=[cb.Bounds(lo, hi)]), SAMPLES)


def test_bounds_that_are_arrays_and_cross_say_so():
    with pytest.raises(ValueError, match="at every context"):
        stated(nearest, np.zeros(2), constraints=[cb.Bounds(np.array([0.0, 1.0]), np.array([1.0, 0.5]))])
    by_name = stated(
        lambda x, y, xi, eta: (y["a"] - xi) ** 2, {"a": 0.0}, constraints=[cb.Bounds({"a": 1.0}, {"a": 0.5})]
    )
    with pytest.raises(
        ValueError, match=r"at 200 of 200 contexts, first at xi = .*y\['a'\] must lie between 1 and 0.5"
    ):
        cb.solve(by_name, SAMPLES)


CONSTRAINTS = {
    "none": ((), 0.0, None),
    "bounds": ([cb.Bounds(0.0, 0.9)], 0.0, None),
    "more": ([cb.Simplex(), cb.Inequalities(lambda x, y, xi: jnp.sum(y**2) - 0.9)], np.full(2, 0.5), cb.Chebyshev(2)),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_ranks_need_not_be_promoted(tmp_path, name):
    """The whole path, where JAX is set to refuse arrays of different ranks."""
    constraints, y0, basis = CONSTRAINTS[name]
    problem = stated(nearest, y0, constraints=constraints)
    with jax.numpy_rank_promotion("raise"):
        solution = cb.solve(problem, SAMPLES, basis)
        assert "x" in str(solution)
        str(cb.certify(problem, solution, SAMPLES))
        str(cb.diagnose(problem, cb.Chebyshev(3), SAMPLES))
        asked = jnp.array([0.1, 0.5])
        expected = np.asarray(solution.policy(asked))
        np.testing.assert_allclose(jax.jit(solution.policy)(asked), expected, rtol=1e-5)
        np.testing.assert_allclose(cb.load(solution.save(tmp_path / "a.npz"), problem).policy(asked), expected)
        assert len(solution.table(asked)["xi"]) == 2


@pytest.mark.parametrize(
    "lower",
    [
        lambda x, y, xi, eta: -((y - xi) ** 2),
        lambda x, y, xi, eta: (xi - x) * y,
        lambda x, y, xi, eta: jnp.where(xi > 0.5, 1.0, -1.0) * (y - xi) ** 2,
        lambda x, y, xi, eta: -((y - xi - eta) ** 2),
        lambda x, y, xi, eta: y**3 - xi * y,
    ],
    ids=["concave", "linear", "in part", "with noise", "cubic"],
)
def test_what_is_not_convex_can_be_diagnosed(lower):
    assert "Diagnosis of" in str(cb.diagnose(stated(lower, 0.1), cb.Chebyshev(4), SAMPLES))


@pytest.mark.parametrize(
    ("lower", "options"),
    [
        (lambda x, y, xi, eta: 0 * y, {}),
        (lambda x, y, xi, eta: -(1 + xi) * y, {"constraints": [cb.Bounds(0.0, None)]}),
        (lambda x, y, xi, eta: jnp.maximum(xi - 0.2, 0) * (y - x) ** 2, {}),
    ],
    ids=["constant", "unbounded below", "flat at some contexts"],
)
@pytest.mark.filterwarnings("ignore:The lower level is not strongly convex")
def test_without_curvature_a_certificate_promises_nothing(lower, options):
    """The matrices of a policy's slopes have no inverse there."""
    problem = stated(lower, 0.1, **options)
    solution = cb.solve(problem, SAMPLES, cb.Chebyshev(3), steps=20)
    certificate = cb.certify(problem, solution, SAMPLES)
    assert certificate.trouble
    assert certificate.regret is None or not np.isfinite(certificate.regret.total)
