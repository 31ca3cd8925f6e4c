"""Methods without a reduction: each comes to the closed form, says what it needs, and repeats itself."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.direct.local_weights import LocalWeights
from cobilevel.direct.method import NO_SAMPLER, noise_given
from cobilevel.direct.pointwise import NoiseRows, Pointwise
from cobilevel.iteration import Result
from cobilevel.lower import law_at
from cobilevel.study import Study

NESTED = {"first": 10, "batch": 8, "epochs": 3}
METHODS = {  # with as many steps as the closed form asks for, and the gap to the optimum that these leave; 32 rows each
    "PerContext": (cb.direct.PerContext(draws=32), 50, 1e-3),
    "Collocation": (cb.direct.Collocation(6, draws=512), 50, 1e-3),
    "neighbours": (cb.direct.LocalWeights(neighbours=32), 50, 3e-3),
    "kernel": (cb.direct.LocalWeights("kernel", 16), 50, 3e-3),
    "forest": (cb.direct.LocalWeights("forest", 25, trees=5), 50, 3e-3),
    "Amortized": (cb.direct.Amortized(outer=0.15, inner=0.01, fits=4, batch=64, width=16, depth=1), 200, 1e-2),
    "DLSGD": (cb.direct.DLSGD(outer=0.15, **NESTED), 150, 1e-2),
    "RTMLMC": (cb.direct.RTMLMC(outer=0.15, **NESTED), 150, 1e-2),
}
CHANCE = ("Amortized", "DLSGD", "RTMLMC")


@pytest.fixture(scope="module")
def small():
    return cb.gallery.quadratic(0, dx=3, dy=2, train=600, test=600, condition=3.0)


@pytest.fixture(scope="module")
def solved(small):
    known = {}

    def solve(name):
        method, steps, _ = METHODS[name]
        if name not in known:
            known[name] = cb.solve(small.problem, small.train, solver=method, steps=steps)
        return known[name]

    return solve


def without_sampler(problem):
    return eqx.tree_at(lambda p: p.conditional, problem, None)


def rows_of(samples, count):
    return cb.Samples(samples.xi[:count], jax.tree.map(lambda a: a[:count], samples.eta))


@pytest.mark.parametrize("name", METHODS)
def test_it_comes_to_the_closed_form(small, solved, name):
    solution, truth = solved(name), small.truth
    best = float(truth.F(truth.x))
    assert float(truth.F(solution.x)) / best - 1 < METHODS[name][2]
    assert float(truth.F(small.problem.x0)) / best - 1 > 0.3  # where it began
    assert solution.stats["samples"] == sum(kind["samples"] for kind in solution.stats["oracles"].values())
    assert len(solution.history["seconds"]) == len(solution.history["x"])
    assert np.all(np.diff(solution.history["step"]) > 0)


@pytest.mark.parametrize("name", METHODS)
def test_its_policy_follows_the_exact_one(small, solved, name):
    solution = solved(name)
    if name in ("DLSGD", "RTMLMC"):
        with pytest.raises(TypeError, match=r"has no policy.*PerContext"):
            solution.policy(small.test.xi)
        return
    exact = np.asarray(small.truth.y(solution.x, small.test.xi))
    found = np.asarray(solution.policy(small.test.xi))
    assert found.shape == exact.shape
    assert np.sqrt(np.mean((found - exact) ** 2)) < 0.08  # noise of 0.3, averaged over 24 rows or more


def test_one_context_is_a_batch_without_its_axis(small, solved):
    xi = small.test.xi[:1]
    one, alone = (np.asarray(solved("neighbours").policy(at)) for at in (xi, xi[0]))
    assert one.shape == (1, 2)
    assert np.array_equal(alone, one[0])


@pytest.mark.parametrize("name", CHANCE)
def test_the_same_key_gives_the_same_answer(small, name):
    first, again, other = (METHODS[name][0].solve(small.problem, small.train, 10, key).x for key in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_reported_draws_are_those_of_the_epochs(solved):
    """Every step runs all epochs of DL-SGD; of RT-MLMC those up to the level after the one drawn."""
    steps, batch, first = 150, NESTED["batch"], NESTED["first"]
    spent = solved("DLSGD").stats["oracles"]
    assert spent["lower_gradient"]["samples"] == steps * batch * first * (1 + 2 + 4 + 8)
    assert spent["hessian_vector"]["samples"] == steps * batch * 2 * first
    levels = solved("RTMLMC").stats["oracles"]
    mean = levels["lower_gradient"]["samples"] / (steps * batch * first)
    chances = METHODS["RTMLMC"][0].chances
    assert mean == pytest.approx(chances @ np.array([3, 7, 15]), rel=0.2)
    assert levels["hessian_vector"]["samples"] == 3 * spent["hessian_vector"]["samples"]


@pytest.mark.parametrize("method", [cb.direct.DLSGD(), cb.direct.RTMLMC(), cb.direct.PerContext()])
def test_without_a_sampler_it_says_what_to_do(small, method):
    with pytest.raises(ValueError, match="conditional=draw"):
        method.solve(without_sampler(small.problem), small.train)
    assert "No sampler is needed by the reduction" in NO_SAMPLER


def test_others_need_no_sampler(small):
    near = cb.direct.LocalWeights(neighbours=32)
    for method in (cb.direct.Collocation(6, near=near), near):
        solution = method.solve(without_sampler(small.problem), small.train, steps=40)
        assert float(small.truth.F(solution.x) / small.truth.F(small.truth.x)) < 1.01
        assert solution.converged


@pytest.mark.parametrize("name", CHANCE)
def test_a_run_that_diverges_says_so(small, name):
    method = eqx.tree_at(lambda m: m.outer, METHODS[name][0], 1e200)
    solution = method.solve(small.problem, small.train, steps=150)
    assert solution.result is Result.DIVERGED
    assert np.isfinite(np.asarray(solution.x)).all()


def test_a_lower_level_without_a_minimum_is_seen():
    problem = cb.Problem(lambda x, y, xi, eta: y + x**2, lambda x, y, xi, eta: x * y, 1.0, 0.0, cb.Interval(0.0, 1.0))
    solution = cb.direct.PerContext().solve(problem, cb.Samples(np.linspace(0, 1, 20)))
    assert solution.result is Result.LOWER_FAILED
    assert "20 of 20" in solution.detail


class Bent(eqx.Module):
    """A lower level that is far from quadratic."""

    def __call__(self, x, y, xi, eta):
        return jnp.sum(jnp.cosh(y - x[:2] * xi - eta)) + 0.1 * jnp.sum(y**4) + x[2] * y[0] * y[1] / 4


def bent_upper(x, y, xi, eta):
    return jnp.sum(jnp.tanh(y - xi) ** 2) + jnp.sum(x**2) * jnp.exp(0.1 * eta[0]) / 10


@pytest.fixture(scope="module")
def bent():
    rng = np.random.default_rng(0)
    draw = lambda key, xi, size: 0.2 * jax.random.normal(key, (size, 2))
    problem = cb.Problem(bent_upper, Bent(), np.ones(3), np.zeros(2), cb.Interval(-1.0, 1.0), conditional=draw)
    return Study.of(problem, cb.Samples(rng.uniform(-1, 1, 20), 0.2 * rng.normal(size=(20, 2))))


@pytest.mark.parametrize("kind", ["draws", "near", "nodes"])
def test_gradients_agree_with_differences(bent, kind):
    study = bent
    xi = np.asarray(study.upper.contexts().xi)
    if kind == "nodes":  # as many as contexts, so that programs are shared
        nodes = np.cos(np.pi * (np.arange(20) + 0.5) / 20)
        vander = lambda z: np.polynomial.chebyshev.chebvander(z, 19)
        spread = vander(xi) @ np.linalg.inv(vander(nodes))
        objective = Pointwise(study, NoiseRows.of_law(study, law_at(study, nodes, 16)), spread)
    else:
        rows = (
            LocalWeights("kernel").rows_at(study, xi)
            if kind == "near"
            else NoiseRows.of_law(study, law_at(study, xi, 16))
        )
        objective = Pointwise(study, rows, np.arange(len(xi)))
    x, h = np.array([0.7, -0.4, 0.3]), 1e-5
    _, slope = objective(x)
    differences = [(objective(x + h * e)[0] - objective(x - h * e)[0]) / (2 * h) for e in np.eye(3)]
    assert slope == pytest.approx(differences, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["DLSGD", "RTMLMC"])
def test_the_nested_gradient_is_the_true_one_on_average(small, name):
    """With steps too short to matter, ``x`` adds up the estimates."""
    method, steps, _ = METHODS[name]
    short = eqx.tree_at(lambda m: m.outer, method, 1e-6)
    moved = np.asarray(small.problem.x0) - np.asarray(short.solve(small.problem, small.train, steps).x)
    exact = np.asarray(small.truth.gradient(small.problem.x0))
    assert moved / (1e-6 * steps / 2) == pytest.approx(exact, abs=0.15 * np.linalg.norm(exact))


@pytest.fixture(scope="module")
def finite():
    """Four contexts, and the closed form of the sample's optimum."""
    rng = np.random.default_rng(0)
    values = np.arange(4.0)
    xi = rng.choice(values, 800)
    eta = np.sin(xi) + 0.3 * rng.normal(size=800)
    lower = lambda x, y, xi, eta: (y - x * (1 + xi) - eta) ** 2
    upper = lambda x, y, xi, eta: (y - 3) ** 2 + 0.1 * x**2
    problem = cb.Problem(upper, lower, 0.0, 0.0, cb.Finite(values))
    mean, share = np.array([[eta[xi == v].mean(), (xi == v).mean()] for v in values]).T
    best = share @ ((1 + values) * (3 - mean)) / (share @ (1 + values) ** 2 + 0.1)
    return problem, cb.Samples(xi, eta), best


def test_finitely_many_contexts_need_no_sampler(finite):
    """Rows of the same context are draws given it, with their weights."""
    problem, data, best = finite
    assert float(cb.direct.PerContext().solve(problem, data).x) == pytest.approx(best, abs=1e-6)
    weights = 1.0 + (np.arange(len(data)) % 3)
    study = Study.of(problem, cb.Samples(data.xi, data.eta, weights))
    draw = eqx.filter_jit(noise_given(study, "DLSGD"))
    for value in problem.domain.values:
        own = np.asarray(data.xi) == value
        drawn, seen = np.asarray(draw(jax.random.key(0), jnp.asarray(value), 4000)), np.asarray(data.eta)[own]
        assert np.isin(drawn, seen).all()
        mean = np.average(seen, weights=weights[own])
        assert drawn.mean() == pytest.approx(mean, abs=4 * seen.std() / 4000**0.5)


@pytest.mark.thorough
def test_finitely_many_contexts_from_end_to_end(finite):
    """By draws from the rows of each; and the blocks of a categorical basis by RSVRB."""
    problem, data, best = finite
    nested = cb.direct.DLSGD(outer=0.03, first=4, epochs=4, batch=16).solve(problem, data, steps=200)
    assert float(nested.x) == pytest.approx(best, abs=0.05)
    blocks = cb.solve(problem, data, cb.Categorical(), cb.RSVRB(), steps=600, batch=32)
    assert float(blocks.x) == pytest.approx(best, abs=0.05)


def test_options_of_the_reduction_are_refused(small):
    with pytest.raises(TypeError, match="solves without a reduction and takes no basis, batch"):
        cb.solve(small.problem, small.train, cb.Chebyshev(3), cb.direct.PerContext(), batch=4)
    with pytest.raises(ValueError, match="kind must be"):
        cb.direct.LocalWeights("near")


def test_collocation_can_be_judged(small, solved):
    judged = cb.evaluate(small.problem, solved("Collocation"), rows_of(small.test, 50), small.truth, draws=64)
    assert judged.x_error < 0.1
    assert "without a reduction" in str(solved("Collocation"))
    assert "without a reduction" in str(solved("PerContext"))


def test_seconds_are_kept(small):
    solution = cb.direct.LocalWeights().solve(small.problem, small.train, seconds=1e-9)
    assert solution.stats["steps"] == 0
    solution = METHODS["DLSGD"][0].solve(small.problem, small.train, seconds=1e-9)
    assert solution.result is Result.BUDGET
