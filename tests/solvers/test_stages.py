"""A search that begins on few rows ends where one on all rows does."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.answer import Job
from cobilevel.derivatives import Expansions, expansion, fewer
from cobilevel.derivatives.sums import RowPool
from cobilevel.lower import solve_at
from cobilevel.reduction import reduce_study
from cobilevel.solvers import Newton
from cobilevel.solvers.newton import _spread
from cobilevel.study import Study

ROWS = 4_000


@pytest.fixture
def dear(monkeypatch):
    """Passes over a few thousand rows count as dear, of which a thousand are drawn."""
    monkeypatch.setattr(fewer, "_DEAR", 1000)
    monkeypatch.setattr(fewer, "BLOCK", 250)


def data(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    xi, t, o = rng.uniform(-1, 1, rows), rng.normal(size=rows), rng.normal(size=rows)
    return cb.Samples(xi, {"t": 0.3 * t, "o": 0.3 * o + 0.1 * t}, rng.uniform(0.5, 1.5, rows))


def stated(g, f):
    goal = lambda x, xi: jnp.sin(2 * xi) + x[0] * xi + 0.3 * x[1] * jnp.cos(xi)
    lower = lambda x, y, xi, eta: g(y - goal(x, xi), eta["t"])
    upper = lambda x, y, xi, eta: f(y - xi, eta["o"]) + 0.1 * jnp.sum((x - 1) ** 2) + 0.1 * jnp.cosh(x[0] * y)
    return cb.Problem(upper, lower, x0=np.zeros(2), y0=0.0, domain=cb.Interval(-1.0, 1.0))


PROBLEMS = {  # what noise is in g and in f, and how many rows the lower and the upper level begin on
    "none": (lambda r, t: jnp.cosh(r), lambda r, o: r**2, (9, 9)),
    "a factor in f": (lambda r, t: jnp.cosh(r), lambda r, o: (r - o) ** 2, (9, 9)),
    "in f": (lambda r, t: jnp.cosh(r), lambda r, o: jnp.cosh(r - o), (9, 1000)),
    "a factor in both": (lambda r, t: (r - t) ** 2 + r**4 / 9, lambda r, o: (r - o) ** 2, (9, 9)),
    "in g": (lambda r, t: jnp.cosh(r - t), lambda r, o: (r - o) ** 2, (1000, 1000)),
    "with kinks": (lambda r, t: (r - t) ** 2, lambda r, o: jnp.abs(r - o), (9, 1000)),
}


@cache
def found_by_all(kind):
    """The solution that sees all rows from the first step on."""
    g, f, _ = PROBLEMS[kind]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fewer, "_DEAR", np.inf)
        return cb.solve(stated(g, f), data(), cb.Chebyshev(5))


@pytest.fixture
def whole(kind):
    """Found before anything of the test is patched."""
    return found_by_all(kind)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_answer_is_that_of_all_rows(whole, dear, kind):
    g, f, few = PROBLEMS[kind]
    solution = cb.solve(stated(g, f), data(), cb.Chebyshev(5))
    assert set(whole.history["rows"]) == {ROWS}
    assert ("rows" in solution.choices, "rows" in whole.choices) == (True, False)
    assert solution.converged
    assert list(dict.fromkeys(solution.history["rows"])) == [few[0], ROWS]
    off = np.abs(solution.in_full().x - whole.in_full().x)
    assert np.all(off <= 1e-6 * whole.uncertainty.error)
    assert np.isclose(solution.history["upper"][-1], whole.history["upper"][-1], rtol=1e-12)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_rows_that_stand_for_all(dear, kind):
    g, f, few = PROBLEMS[kind]
    reduced = reduce_study(Study.of(stated(g, f), data()), cb.Chebyshev(5)).whitened().ordinary()
    at = fewer.with_fewer(Expansions(reduced))
    assert (at.fewer.rows["lower"], at.fewer.rows["upper"]) == few
    if few[0] != 9:
        return
    (pool,), (nodes,) = at.lower_pools, at.fewer.lower_pools
    gram = lambda pool: (pool.features.T * pool.shares) @ pool.features
    assert np.all(nodes.shares > 0)
    assert np.allclose(gram(nodes), gram(pool), atol=1e-10)
    if few[1] == 9:  # also of what is noise times a polynomial
        x, W = np.array([0.3, -0.2]), 0.1 * np.eye(5, 1)
        for few_sums, all_sums in zip(at.fewer.upper(x, W)[1:], at.upper(x, W)[1:], strict=True):
            assert np.allclose(few_sums, all_sums, atol=3e-4)


@pytest.mark.parametrize(
    "f",
    [
        lambda r, o: jnp.maximum(r - o, 0),
        lambda r, o: jnp.maximum(r - o + 50, 0),  # the kink is out of sight
        lambda r, o: (r - o) ** 4,
        lambda r, o: r**2 * o**2,
        lambda r, o: jnp.exp(r * o),
    ],
)
def test_noise_that_is_no_factor_is_not_averaged(dear, f):
    reduced = reduce_study(Study.of(stated(PROBLEMS["none"][0], f), data()), cb.Chebyshev(4)).whitened().ordinary()
    assert fewer.with_fewer(Expansions(reduced)).fewer.rows == {"lower": 7, "upper": 1000}


def test_rows_that_hardly_see_a_function_do_not_stand_for_all():
    at, shares = SimpleNamespace(idle=np.zeros(2, bool)), np.full(2, 0.5)
    alike = lambda rows: fewer._alike(RowPool(np.array(rows), shares, None), at)
    assert alike([[1.0, 1.0], [1.0, -1.0]])
    assert not alike([[1.0, 0.1], [1.0, -0.1]])


def test_derivatives_that_are_finite_near_the_start_alone_tell_a_factor(dear):
    f = lambda r, o: (r - o) ** 2 + (0.2 - r**2 * 1e-4) ** 1.5  # undefined from 45 on
    problem = stated(PROBLEMS["none"][0], f)
    problem = cb.Problem(problem.upper, problem.lower, x0=np.zeros(2), y0=40.0, domain=problem.domain)
    reduced = reduce_study(Study.of(problem, data()), cb.Chebyshev(4)).whitened().ordinary()
    assert fewer.with_fewer(Expansions(reduced)).fewer.rows == {"lower": 7, "upper": 7}


@pytest.fixture
def long(dear, monkeypatch):
    """Rows count as long: a stage comes first in which each row has coefficients of its own."""
    for module in (fewer, expansion):
        monkeypatch.setattr(module, "AT_ONCE", 0)


@pytest.mark.parametrize("kind", ["none", "in f", "a factor in both"])
@pytest.mark.parametrize("formed", [True, False])
def test_a_stage_of_nodes_comes_first_where_rows_are_long(whole, long, monkeypatch, kind, formed):
    if not formed:  # the matrices of all rows are none, those of few are taken in their place
        monkeypatch.setattr(expansion, "DENSE_LIMIT", 4)
        monkeypatch.setattr(fewer, "DENSE_LIMIT", 4)
    g, f, few = PROBLEMS[kind]
    solution = cb.solve(stated(g, f), data(), cb.Chebyshev(5))
    assert list(dict.fromkeys(solution.history["rows"])) == [5, few[0], ROWS]
    assert solution.converged
    assert whole.converged
    bound = 1e-6 if formed else 1e-3  # by products the end is that of the tolerance
    assert np.all(np.abs(solution.in_full().x - whole.in_full().x) <= bound * whole.uncertainty.error)


def test_nodes_are_a_quadrature_of_the_functions(long):
    g, f, _ = PROBLEMS["none"]
    reduced = reduce_study(Study.of(stated(g, f), data()), cb.Chebyshev(5)).whitened().ordinary()
    at = fewer.with_fewer(Expansions(reduced))
    nodal, W = at.fewer.fewer, np.arange(5.0).reshape(5, 1)
    (pool,), (nodes,) = at.lower_pools, nodal.lower_pools
    assert np.all(nodes.shares > 0)
    assert np.allclose(nodal.nodal.T @ np.sqrt(nodes.shares), pool.shares @ pool.features)
    assert np.allclose(nodal.outer(nodal.inner(W)), W)
    assert nodal.lower(np.zeros(2), nodal.inner(W)).hessian.shape == (5, 1, 1)  # each has coefficients of its own


def test_matrices_of_few_rows_give_the_gradient_of_all(long):
    g, f, _ = PROBLEMS["none"]
    reduced = reduce_study(Study.of(stated(g, f), data()), cb.Chebyshev(5)).whitened().ordinary()
    at, x = fewer.with_fewer(Expansions(reduced)), np.array([0.3, -0.2])
    assert at.close is at.fewer
    W, target = at.table(reduced.W0), 1e-12
    by_few = solve_at(at, x, W, target)
    assert at.spent["hessian", "calls"] == 0
    at.fewer = None
    by_all = solve_at(at, x, W, target)
    assert by_few.sound
    for name in ("W", "value", "gradient", "adjoint"):
        assert np.allclose(getattr(by_few, name), getattr(by_all, name), rtol=1e-9, atol=1e-10), name


def test_what_is_left_of_the_lower_level_costs_the_objective_its_square(long):
    """The matrices of few rows leave a residual, which the adjoint takes off."""
    g, f, _ = PROBLEMS["none"]
    reduced = reduce_study(Study.of(stated(g, f), data()), cb.Chebyshev(5)).whitened().ordinary()
    at, x = fewer.with_fewer(Expansions(reduced)), np.array([0.3, -0.2])
    W = at.table(reduced.W0)
    exact, rough = solve_at(at, x, W, 1e-12), solve_at(at, x, W, np.inf, close=0.3)
    off = np.linalg.norm(rough.W - exact.W)
    plain = at.upper(x, rough.W).value - exact.value
    assert off > 1e-9
    assert abs(rough.value - exact.value) < 1e-2 * abs(plain)


def test_stopping_is_relative_to_single_samples_where_noise_is_a_mean(long):
    g, f, _ = PROBLEMS["a factor in both"]
    reduced = reduce_study(Study.of(stated(g, f), data()), cb.Chebyshev(5)).whitened().ordinary()
    at, x = fewer.with_fewer(Expansions(reduced)), np.array([0.3, -0.2])
    point = solve_at(at, x, at.table(reduced.W0), 1e-12)
    turned = replace(point, W=at.fewer.fewer.inner(point.W))
    spreads = [_spread(at, point), _spread(at.fewer, point), _spread(at.fewer.fewer, turned)]
    assert np.allclose(spreads, spreads[0])
    assert not np.isclose(at.fewer.row_scales(x, point.W, centre=point.value).spread, spreads[0], rtol=0.05)


def test_cheap_rows_are_not_left_out():
    g, f, _ = PROBLEMS["in g"]
    solution = cb.solve(stated(g, f), data(), cb.Chebyshev(5))
    assert set(solution.history["rows"]) == {ROWS}


def test_all_rows_are_begun_with_where_few_mislead(dear, monkeypatch):
    """One row, which few rows miss, rules out what they find."""
    samples, noise = data(), np.clip(data().eta["t"], -0.5, 0.5)
    drawn = np.random.default_rng(0).choice(ROWS, 1000, replace=False)
    noise[np.setdiff1d(np.arange(ROWS), drawn)[0]] = -3.0
    samples = cb.Samples(samples.xi, {"t": noise, "o": samples.eta["o"]})
    wall = lambda r, t: r**2 - 1e-3 * jnp.log(r + t + 2.9)
    problem = stated(wall, lambda r, o: (r - o) ** 2)
    problem = cb.Problem(problem.upper, problem.lower, x0=np.zeros(2), y0=2.0, domain=problem.domain)
    anew, own = [], cb.Newton._anew
    monkeypatch.setattr(cb.Newton, "_anew", lambda self, *given: anew.append(given) or own(self, *given))
    solution = cb.solve(problem, samples, cb.Chebyshev(4))
    assert len(anew) == 1
    assert solution.converged
    monkeypatch.setattr(fewer, "_DEAR", np.inf)
    whole = cb.solve(problem, samples, cb.Chebyshev(4))
    assert np.allclose(solution.in_full().x, whole.in_full().x, rtol=1e-9)


def test_failure_on_few_rows_and_on_all_ends_the_run(dear):
    problem = stated(lambda r, t: -jnp.cosh(r - t), lambda r, o: (r - o) ** 2)
    solution = cb.solve(problem, data(), cb.Chebyshev(4))  # and says nothing of infinities met in threads
    assert solution.result is cb.Result.LOWER_FAILED
    assert solution.history["rows"].tolist() == [1000, ROWS]


def test_few_steps_all_see_all_rows(dear):
    """However few steps are allowed, the last ones are on all rows; and a run that goes on ends at the same point."""
    g, f, _ = PROBLEMS["in g"]
    problem, samples = stated(g, f), data()
    cut = cb.solve(problem, samples, cb.Chebyshev(5), steps=2)
    assert cut.result is cb.Result.BUDGET
    assert cut.history["rows"].tolist() == [1000, ROWS]
    on, whole = cb.solve(problem, samples, cb.Chebyshev(5), resume=cut), cb.solve(problem, samples, cb.Chebyshev(5))
    assert np.allclose(on.in_full().x, whole.in_full().x, rtol=1e-10)


def test_counts_are_those_of_the_rows_seen(dear):
    g, f, _ = PROBLEMS["in g"]
    solution = cb.solve(stated(g, f), data(), cb.Chebyshev(5))
    spent, few = solution.stats["oracles"]["hessian"], np.sum(solution.history["rows"] == 1000)
    assert spent["samples"] < spent["calls"] * ROWS
    assert (spent["samples"] - 1000 * spent["calls"]) % (ROWS - 1000) == 0
    assert few > 0


@pytest.mark.parametrize("kind", ["none", "in g"])
def test_where_the_basis_is_chosen_all_rows_are_seen_with_the_last_one_alone(dear, monkeypatch, tmp_path, kind):
    """Few rows say where to choose again; the run on them goes on, also from a checkpoint, as if it had not stopped."""
    problem, scouted, found = stated(*PROBLEMS[kind][:2]), Job.scouted, []
    monkeypatch.setattr(Job, "scouted", lambda self, basis: found.append(scouted(self, basis)) or found[-1])
    solution = cb.solve(problem, data(), checkpoint=tmp_path)
    assert found
    assert all(max(one.history["rows"]) < ROWS for one in found)
    last, steps = found[-1], found[-1].stats["steps"]
    assert solution.converged
    assert solution.history["rows"][-1] == ROWS
    np.testing.assert_array_equal(solution.history["upper"][:steps], last.history["upper"])
    in_one = cb.solve(problem.at(problem.x0), data(), solution.basis.basis)
    assert np.all(np.abs(solution.in_full().x - in_one.in_full().x) <= 1e-6 * in_one.uncertainty.error)
    found.clear()
    monkeypatch.setattr(Newton, "step", None)  # all of it is in the checkpoint
    again = cb.solve(problem, data(), checkpoint=tmp_path)
    np.testing.assert_array_equal(again.x, solution.x)


def test_where_rows_are_not_dear_the_first_run_is_the_whole_one(monkeypatch):
    scouted, found = Job.scouted, []
    monkeypatch.setattr(Job, "scouted", lambda self, basis: found.append(scouted(self, basis)) or found[-1])
    solution = cb.solve(stated(*PROBLEMS["none"][:2]), data(300))
    assert np.array_equal(solution.x, found[-1].x)
    assert found[-1].converged
