"""Constraints on y against closed forms: projections on boxes and simplices, lines that equalities leave."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.lower import constraints, corners, minimise, with_barrier
from cobilevel.study import Smoothing, Study
from problems import LINE

XI = np.random.default_rng(0).uniform(size=200)
FRESH = np.random.default_rng(1).uniform(size=1000)
X0, Y0 = jnp.array([0.5, 0.5]), jnp.full(3, 0.3)
TARGET = np.array([0.6, 0.2, 0.4])


def centre(x, xi, np=jnp):
    """What the lower level aims at."""
    return np.stack([x[0] + np.sin(4 * xi), x[1] * xi - 0.3, 0.5 - xi + 0.5 * x[0]], axis=-1)


def lower(x, y, xi, eta):
    return 0.5 * jnp.sum((y - centre(x, xi)) ** 2)


def upper(x, y, xi, eta):
    return jnp.sum((y - TARGET) ** 2) + 0.05 * jnp.sum(x**2)


def problem(constraints, **options):
    return cb.Problem(upper, lower, X0, Y0, LINE, constraints=constraints, **options)


def on_simplex(v, total=1.0):
    """The nearest point with nonnegative entries that add up to `total`, by sorting."""
    ordered = -np.sort(-v, axis=-1)
    over = (np.cumsum(ordered, axis=-1) - total) / np.arange(1, v.shape[-1] + 1)
    count = np.sum(ordered > over, axis=-1)
    return np.maximum(v - np.take_along_axis(over, count[..., None] - 1, axis=-1), 0)


BOX = [cb.Bounds(0.0, 1.0)]


@pytest.fixture(scope="module")
def boxed():
    return cb.solve(problem(BOX), cb.Samples(XI), basis=cb.Chebyshev(20))


def test_bounds_give_the_clipped_policy(boxed):
    exact = np.clip(centre(np.asarray(boxed.x), FRESH, np), 0, 1)
    found = np.asarray(boxed.policy(FRESH))
    assert boxed.converged
    assert np.mean(np.sum((found - exact) ** 2, axis=1)) < 1e-4  # the corners of the policy, by 20 polynomials
    seen = np.asarray(boxed.policy(XI))
    broken = np.concatenate([np.maximum(-seen.min(axis=0), 0), np.maximum(seen.max(axis=0) - 1, 0)])
    np.testing.assert_allclose([row.largest for row in boxed.feasibility.rows], broken, atol=1e-12)
    assert broken.max() < 2e-4
    assert 0 < boxed.feasibility.largest_fresh < 2e-3
    assert 0 < max(-found.min(), found.max() - 1) < 2e-3


def test_evaluate_solves_the_constrained_lower_level(boxed):
    found = cb.evaluate(problem(BOX), boxed, cb.Samples(FRESH[:200]))
    exact = np.clip(centre(np.asarray(boxed.x), FRESH[:200], np), 0, 1)
    loss = np.mean(np.sum((exact - TARGET) ** 2, axis=1)) + 0.05 * np.sum(np.asarray(boxed.x) ** 2)
    assert abs(float(found.loss) - loss) < 1e-5
    gaps = np.sum((np.asarray(boxed.policy(FRESH[:200])) - exact) ** 2, axis=1)
    np.testing.assert_allclose(float(found.policy_error), gaps.mean(), rtol=1e-2)


def test_a_solution_with_constraints_is_saved_and_loaded(boxed, tmp_path):
    again = cb.load(boxed.save(tmp_path / "run.npz"), problem(BOX))
    np.testing.assert_array_equal(again.policy(FRESH), boxed.policy(FRESH))
    assert again.feasibility == boxed.feasibility
    assert again.smoothing.to_json() == boxed.smoothing.to_json()
    assert repr(again) == repr(boxed)
    for others in ([cb.Bounds(0.0, 2.0)], None):
        with pytest.raises(ValueError, match="was found under other constraints"):
            cb.load(tmp_path / "run.npz", problem(others))


def test_feasibility_reads_as_its_sentences(boxed):
    assert str(boxed.feasibility).splitlines() == [
        "Feasibility",
        *(f"  {words}" for words in boxed.feasibility.words()),
    ]


def test_the_active_ones_are_named_with_where(boxed):
    first = centre(np.asarray(boxed.x), XI, np)[:, 0] > 1
    (met,) = (row for row in boxed.feasibility.active if row.name == "y[0] <= 1")
    np.testing.assert_allclose(met.where, (XI[first].min(), XI[first].max()), atol=0.05)


def test_simplex_gives_the_projection_and_adds_up_everywhere():
    found = cb.solve(problem([cb.Simplex()]), cb.Samples(XI), basis=cb.Chebyshev(20))
    y = np.asarray(found.policy(FRESH))
    np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-12)
    exact = on_simplex(centre(np.asarray(found.x), FRESH, np))
    assert np.mean(np.sum((y - exact) ** 2, axis=1)) < 2e-5
    assert found.feasibility.equalities == 1
    assert found.W.shape == (20, 2)
    assert np.isnan(np.asarray(found.policy(jnp.array([1.5])))).all()


def test_bounds_may_depend_on_the_context_and_on_part_of_y():
    lo, hi = lambda xi: jnp.array([0.2, -1.0, 0.1]) * xi, {"price": None}
    tree = {"price": jnp.array([0.4])}
    stated = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y["price"] - 1) ** 2) + x**2,
        lambda x, y, xi, eta: jnp.sum((y["price"] - x - xi) ** 2),
        0.2, tree, LINE, constraints=[cb.Bounds({"price": 0.5}, hi)],
    )  # fmt: skip
    found = cb.solve(stated, cb.Samples(XI), basis=cb.Chebyshev(20))
    y = np.asarray(found.policy(FRESH)["price"])[:, 0]
    assert np.mean((y - np.maximum(float(found.x) + FRESH, 0.5)) ** 2) < 2e-5
    assert cb.Bounds(lo).names(Y0, 3) == ["y[0] >= lo(xi)", "y[1] >= lo(xi)", "y[2] >= lo(xi)"]
    slack = cb.Bounds(lo, 2.0).slack(X0, Y0, jnp.asarray(0.5))
    np.testing.assert_allclose(slack, [0.2, 0.8, 0.25, 1.7, 1.7, 1.7])


def test_equalities_are_eliminated_and_convexity_is_asked_for_along_them_only():
    """``g`` is flat in ``y[1]``; with ``y[0] + y[1] = xi`` it is known: ``(x xi, xi - x xi)``."""
    stated = cb.Problem(
        lambda x, y, xi, eta: (y[1] - 0.25 * xi) ** 2,
        lambda x, y, xi, eta: (y[0] - x * xi) ** 2,
        0.1, jnp.zeros(2), LINE, constraints=[cb.Equalities(np.ones((1, 2)), lambda x, xi: xi[None])],
    )  # fmt: skip
    found = cb.solve(stated, cb.Samples(XI), basis=cb.Chebyshev(4))
    assert abs(float(found.x) - 0.75) < 1e-6
    y = np.asarray(found.policy(FRESH))
    np.testing.assert_allclose(y.sum(axis=1), FRESH, atol=1e-12)
    np.testing.assert_allclose(y[:, 0], 0.75 * FRESH, atol=1e-6)
    repeated = cb.Equalities(np.ones((2, 2)), lambda x, xi: jnp.stack([xi, xi]))  # the same one twice does no harm
    again = cb.solve(eqx.tree_at(lambda p: p.constraints, stated, (repeated,)), cb.Samples(XI), basis=cb.Chebyshev(4))
    assert abs(float(again.x) - 0.75) < 1e-6


def test_equalities_may_depend_on_x():
    """``y[0] + y[1] = x``: the gradient of F holds what the right-hand side contributes."""
    stated = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - jnp.stack([xi, 2.0])) ** 2),
        lambda x, y, xi, eta: jnp.sum((y - jnp.stack([xi, 0.0])) ** 2),
        0.0, jnp.zeros(2), LINE, constraints=[cb.Equalities([[1.0, 1.0]], lambda x, xi: x)],
    )  # fmt: skip
    found = cb.solve(stated, cb.Samples(XI), basis=cb.Chebyshev(3))
    share = lambda x: (x - XI) / 2  # added to each entry
    F = lambda x: np.mean(share(x) ** 2 + (share(x) - 2) ** 2)
    xs = np.linspace(1, 4, 3001)
    assert abs(float(found.x) - xs[np.argmin([F(x) for x in xs])]) < 2e-3


def test_the_barrier_is_the_logarithm_and_below_the_floor_its_parabola():
    barrier = Smoothing(np.asarray(0.1), np.asarray(0.01), np.array([2.0]), np.asarray(0.1), np.asarray(1e-4))
    compiled = jax.jit(lambda s: barrier.barrier(s[None]))
    value = lambda s: float(compiled(s))
    assert value(0.02) == 0.0  # a slack of 0.01 in units of y
    np.testing.assert_allclose(value(0.5) - value(0.3), -0.1 * np.log(0.5 / 0.3), rtol=1e-9)
    slope = jax.jit(jax.grad(compiled))
    bend = jax.jit(jax.grad(slope))
    for derivative in (slope, bend):
        above, below = (float(derivative(0.02 * (1 + h))) for h in (1e-9, -1e-9))
        np.testing.assert_allclose(above, below, rtol=1e-6)
    np.testing.assert_allclose(float(slope(0.5)), -0.1 / 0.5)
    np.testing.assert_allclose(float(slope(-1.0)), -0.1 / 0.02 * (1 + 1.02 / 0.02))
    assert np.isfinite(value(np.inf))
    assert value(-1e6) > 0


def test_the_smoothed_policy_is_the_closed_form():
    """``min (y - c)^2 / 2 - t log y`` is at ``(c + sqrt(c^2 + 4 t)) / 2``."""
    stated = cb.Problem(
        lambda x, y, xi, eta: y * x + x**2, lambda x, y, xi, eta: (y - xi) ** 2 / 2,
        0.0, 0.5, cb.Interval(-1.0, 1.0), constraints=[cb.Bounds(0.0)], smoothing=1e-2,
    )  # fmt: skip
    xi = np.linspace(-1, 1, 201)
    found = cb.solve(stated, cb.Samples(xi), basis=cb.Chebyshev(60))
    t = float(found.smoothing.weight)
    (met,) = found.feasibility.active  # where the minimum without the constraint is below zero
    np.testing.assert_allclose((met.active, *met.where), (np.mean(xi < 0), -1, 0), atol=0.02)
    closed = (xi + np.sqrt(xi**2 + 4 * t)) / 2
    np.testing.assert_allclose(found.policy(xi), closed, atol=1e-4)
    cost = ((closed - xi) ** 2 - (np.maximum(xi, 0) - xi) ** 2) / 2
    assert np.all(cost <= found.feasibility.price)
    assert np.max(cost) > 0.3 * found.feasibility.price


def test_the_units_of_a_constraint_do_not_matter():
    found = [
        cb.solve(problem([lambda x, y, xi, k=k: k * (jnp.sum(y) - 0.7)]), cb.Samples(XI), basis=cb.Chebyshev(8))
        for k in (1e-8, 1e8)
    ]
    assert all(one.converged for one in found)
    np.testing.assert_allclose(found[0].x, found[1].x, rtol=1e-4)
    for one in found:
        assert one.feasibility.rows[0].name == "constraints[0]: h(x, y, xi) <= 0"


def test_constraints_that_cannot_be_met_are_named_with_the_context():
    crowded = [cb.Bounds(0.0, 1.0), lambda x, y, xi: 2.5 + xi - jnp.sum(y)]  # impossible from xi = 0.5 on
    with pytest.warns(UserWarning, match="cannot all be met"):
        found = cb.solve(problem(crowded), cb.Samples(XI), basis=cb.Chebyshev(8))
    assert found.result == cb.Result.INFEASIBLE
    assert not found.converged
    worst = float(found.detail.split("xi = ")[1].split()[0])
    assert worst > 0.9


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([cb.Equalities(np.ones((1, 2)))], "A has 2 columns, but y holds 3 numbers"),
        ([cb.Equalities([[1.0, 0, 0], [1.0, 0, 0]], np.array([0.0, 1.0]))], "contradict each other"),
        ([cb.Equalities(np.eye(3))], "determine all 3 numbers"),
        ([cb.Equalities(np.ones((1, 3)), np.ones(2))], "b must have shape"),
        ([lambda x, y, xi: xi - 2.0], "does not change with y"),
        ([lambda x, y, xi: jnp.log(y - 50.0)], "gives NaN there"),
        ([lambda x, y, xi: y["flow"]], "fails on one context"),
        ([lambda x, y, xi: np.exp(y)], "use jax.numpy"),
        ([cb.Bounds(np.zeros(2))], "does not fit"),
    ],
)
def test_constraints_that_make_no_sense_are_named(constraints, message):
    with pytest.raises(ValueError, match=message):
        cb.reduce(problem(constraints), cb.Chebyshev(3), cb.Samples(XI))


def test_what_is_no_constraint_is_refused():
    for wrong, message in (([3.0], "list of"), ([cb.Bounds], "list of"), ("y >= 0", "list of")):
        with pytest.raises(TypeError, match=message):
            problem(wrong)
    for lo, hi, message in (
        (np.nan, 1.0, "numbers that y can meet"),
        (np.inf, None, "can meet"),
        (2.0, 1.0, "above hi"),
    ):
        with pytest.raises(ValueError, match=message):
            problem([cb.Bounds(lo, hi)])
    with pytest.raises(ValueError, match="one number"):
        cb.Simplex(np.ones(3))
    with pytest.raises(ValueError, match="row 1 of A is zero"):
        cb.Equalities([[1.0, 0.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match="bounds nothing"):
        problem([cb.Bounds()])
    with pytest.raises(ValueError, match="smoothing"):
        problem(BOX, smoothing=0.0)
    with pytest.raises(ValueError, match="one row per equality"):
        cb.Equalities(np.ones(3))
    one = lambda xi: xi
    for make, message in (
        (lambda: problem([one]), r"Inequalities must accept the 3 arguments of h\(x, y, xi\), but takes \(xi\)"),
        (lambda: cb.Equalities(np.ones((1, 3)), one), r"Equalities: b must accept the 2 arguments of b\(x, xi\)"),
        (lambda: problem([cb.Bounds(lambda x, xi: xi)]), r"Bounds: lo must accept the 1 argument of lo\(xi\)"),
        (lambda: cb.Simplex(lambda x, xi: xi), r"Simplex: total must accept the 1 argument of total\(xi\)"),
    ):
        with pytest.raises(TypeError, match=message):
            make()


def test_neither_the_start_nor_a_far_bound_sets_the_barrier():
    """The policy and the price are the same from any start, and whatever a bound that is never reached is."""
    aim = lambda x, y, xi, eta: (y - 3 * xi) ** 2
    judge = lambda x, y, xi, eta: (x - 0.5) ** 2 + 0.01 * y**2
    exact, places = np.minimum(3 * FRESH, 2.0), FRESH
    prices = []
    for y0, far in ((0.0, -9.0), (1e6, -9.0), (0.0, -1e6)):
        stated = cb.Problem(judge, aim, 0.4, y0, LINE, constraints=[cb.Bounds(far, 2.0)])
        found = cb.solve(stated, cb.Samples(XI), basis=cb.Chebyshev(20))
        assert np.abs(np.asarray(found.policy(places)) - exact).max() < 0.05, (y0, far)
        prices.append(found.feasibility.price)
    np.testing.assert_allclose(prices, prices[0], rtol=0.2)


def test_a_disc_around_the_start_is_a_constraint():
    """Its slope vanishes there, and nowhere else."""
    stated = cb.Problem(
        lambda x, y, xi, eta: (x - 0.5) ** 2 + 0.01 * jnp.sum(y**2),
        lambda x, y, xi, eta: jnp.sum((y - jnp.stack([2 * xi, 1.0])) ** 2),
        0.4, jnp.zeros(2), LINE, constraints=[lambda x, y, xi: jnp.sum(y**2) - 1],
    )  # fmt: skip
    found = cb.solve(stated, cb.Samples(XI), basis=cb.Chebyshev(20))
    wanted = np.stack([2 * FRESH, np.ones_like(FRESH)], axis=1)
    wanted /= np.linalg.norm(wanted, axis=1)[:, None]
    np.testing.assert_allclose(found.policy(FRESH), wanted, atol=0.02)


def test_noise_under_constraints_does_not_run_the_basis_up():
    rng = np.random.default_rng(3)
    xi = rng.uniform(size=800)
    eta = 2 * xi + 0.3 * rng.normal(size=800)
    stated = cb.Problem(
        lambda x, y, xi, eta: (y - 0.6 * eta) ** 2 + 0.05 * x**2, lambda x, y, xi, eta: (y - x * eta) ** 2,
        1.0, 0.5, LINE, constraints=[cb.Bounds(0.3, 0.8)],
    )  # fmt: skip
    found = cb.solve(stated, cb.Samples(xi, eta))
    assert 4 <= found.basis.size <= 20
    exact = np.clip(2 * float(found.x) * FRESH, 0.3, 0.8)
    assert np.sqrt(np.mean((np.asarray(found.policy(FRESH)) - exact) ** 2)) < 0.03
    assert 5e-4 < float(found.standard_error) < 1e-2  # twenty resamplings gave 0.003


def test_a_run_goes_on_under_its_own_constraints_only(boxed):
    for others in ([cb.Bounds(-0.1, 0.1)], None):
        with pytest.raises(ValueError, match="was found under other constraints"):
            cb.solve(problem(others), cb.Samples(XI), basis=cb.Chebyshev(20), resume=boxed)
        with pytest.raises(ValueError, match="was found under other constraints"):
            cb.evaluate(problem(others), boxed, cb.Samples(XI))


def test_equalities_are_told_apart_by_their_numbers(tmp_path):
    stated = lambda A, b: problem([cb.Equalities(A, b)])
    reduced = cb.reduce(stated([[1.0, 2.0, 3.0]], 1.0), cb.Chebyshev(3), cb.Samples(XI))
    path = reduced.lift(reduced.x0, reduced.W0).save(tmp_path / "run.npz")
    cb.load(path, stated([[2.0, 4.0, 6.0]], 2.0))  # the same, in other units
    for A, b in (([[1.0, 2.0, 3.0]], 5.0), ([[3.0, -1.0, 0.0]], 1.0)):
        with pytest.raises(ValueError, match="was found under other constraints"):
            cb.load(path, stated(A, b))


def test_rows_of_equalities_in_other_units_count():
    A, b = [[1.0, 1.0, 1.0], [1e-11, -1e-11, 0.0]], np.array([1.0, 1e-11])
    reduced = cb.reduce(problem([cb.Equalities(A, b)]), cb.Chebyshev(3), cb.Samples(XI))
    y = np.asarray(reduced.lift(reduced.x0, reduced.W0).policy(FRESH))
    np.testing.assert_allclose(y[:, 0] - y[:, 1], 1, atol=1e-9)


def test_equalities_that_contradict_each_other_at_the_solution():
    """They agree at ``x0``, and the upper level leads away from it."""
    both = cb.Equalities(np.ones((2, 3)), lambda x, xi: jnp.stack([1.0, 2 * x[0]]))
    stated = cb.Problem(lambda x, y, xi, eta: jnp.sum((x - 2) ** 2), lower, X0, Y0, LINE, constraints=[both])
    with pytest.warns(UserWarning, match="contradict each other, for this x"):
        found = cb.solve(stated, cb.Samples(XI), basis=cb.Chebyshev(3))
    assert found.result == cb.Result.INFEASIBLE


def test_constraints_see_the_parts_of_a_mixed_context():
    """Capacity depends on the day, and what must add up on the hour."""
    domain = cb.Mixed(hour=cb.Interval(0.0, 1.0), day=cb.Finite(["mon", "sun"]))
    rng = np.random.default_rng(2)
    xi = {"hour": rng.uniform(size=200), "day": rng.choice(["mon", "sun"], 200)}
    stated = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - 0.4) ** 2) + 0.1 * x**2,
        lambda x, y, xi, eta: jnp.sum((y - jnp.stack([x, 0.0])) ** 2),
        0.5, jnp.full(2, 0.3), domain,
        constraints=[
            cb.Equalities([[1.0, 1.0]], lambda x, xi: 0.5 + xi["hour"]),
            lambda x, y, xi: y[0] - jnp.where(xi["day"] == 0, 0.6, 2.0),
        ],
    )  # fmt: skip
    basis = cb.Components(hour=cb.Chebyshev(12), day=cb.Categorical())
    found = cb.solve(stated, cb.Samples(xi), basis=basis)
    hours = np.linspace(0, 1, 50)
    for day, most in (("mon", 0.6), ("sun", 2.0)):
        y = np.asarray(found.policy({"hour": hours, "day": np.full(50, day)}))
        np.testing.assert_allclose(y.sum(axis=1), 0.5 + hours, atol=1e-12)
        exact = np.minimum((float(found.x) + 0.5 + hours) / 2, most)
        assert np.mean((y[:, 0] - exact) ** 2) < 1e-4


def test_a_bound_that_is_infinite_at_some_contexts_in_single_precision(monkeypatch):
    """What minimises the slacks knows their precision: it would search through rounding for thousands of trials."""
    evaluations = []
    counted = lambda *args, **how: (evaluations.append((end := minimise(*args, **how)).evaluations), end)[1]
    monkeypatch.setattr(corners, "minimise", counted)
    lo = lambda xi: jnp.where(xi < 0.5, -jnp.inf, 0.2)
    lower = lambda x, y, xi, eta: (y - x * xi) ** 2
    stated = cb.Problem(
        lambda x, y, xi, eta: (y - 1) ** 2 + 0.1 * x**2, lower, 0.5, 0.0, LINE, constraints=[cb.Bounds(lo, 0.8)]
    )
    data = cb.Samples(np.linspace(0, 1, 100))
    single, double = (cb.solve(stated, data, cb.Chebyshev(4), precision=kind) for kind in ("single", "double"))
    np.testing.assert_allclose(single.x, double.x, rtol=1e-3)
    assert 0 < max(evaluations) < 100


def test_a_barrier_that_fits_is_measured_once(monkeypatch):
    """Its length is known from the first look where a step down the slope leads to the minimum, as it does here."""
    counted = []
    monkeypatch.setattr(constraints, "minimise", lambda *args: counted.append(1) or minimise(*args))
    study = Study.of(problem([cb.Bounds(-5.0, 5.0)]), cb.Samples(XI))
    first, fitted = study.constrained.smoothing, with_barrier(study).constrained.smoothing
    y = centre(np.asarray(X0), XI, np)
    length = np.sqrt(np.mean((y - y.mean(axis=0)) ** 2))
    for smoothing in (first, fitted):
        assert float(smoothing.width) / float(smoothing.share) ** 0.5 == pytest.approx(length, rel=0.05)
    assert len(counted) == 1
