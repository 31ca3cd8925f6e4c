"""The quadratic model of Newton against linear algebra: bounds, units, curvature that is not positive, secants."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from cobilevel.solvers.newton_model import Model, Secants, explaining, units_of

EPS = np.finfo(float).eps


def model_at(hessian, gradient, x=None, lo=-np.inf, hi=np.inf, unit=None):
    dx = len(gradient)
    x = np.zeros(dx) if x is None else x
    bounds = tuple(np.broadcast_to(np.asarray(end, float), dx) for end in (lo, hi))
    unit = units_of(hessian) if unit is None else unit
    return Model(SimpleNamespace(bounds=bounds, eps=EPS), SimpleNamespace(x=x, gradient=gradient), hessian, unit)


def positive(rng, dx):
    root = rng.normal(size=(dx, dx))
    return root @ root.T + 0.1 * np.eye(dx)


@pytest.mark.parametrize("seed", range(5))
def test_without_bounds_it_is_newtons_step_in_all_units(seed):
    rng = np.random.default_rng(seed)
    hessian, gradient, scale = positive(rng, 4), rng.normal(size=4), 10.0 ** rng.integers(-9, 10, 4)
    exact = -np.linalg.solve(hessian, gradient)
    np.testing.assert_allclose(model_at(hessian, gradient).step(), exact, rtol=1e-9)
    scaled = model_at(hessian * np.outer(scale, scale), gradient * scale)
    np.testing.assert_allclose(scaled.step() * scale, exact, rtol=1e-8)
    promised = -(gradient * scale) @ scaled.step() / 2
    assert promised == pytest.approx(gradient @ np.linalg.solve(hessian, gradient) / 2, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_within_bounds_it_is_a_descent_to_the_constrained_minimum(seed):
    """Of a diagonal Hessian that of bounded least squares; of any other, within the bounds and downhill."""
    rng = np.random.default_rng(seed)
    gradient, lo, hi = rng.normal(size=5), -rng.uniform(0, 0.5, 5), rng.uniform(0, 0.5, 5)
    diagonal = rng.uniform(0.5, 2.0, 5)
    root = np.diag(np.sqrt(diagonal))
    best = lsq_linear(root, -np.linalg.solve(root, gradient), (lo - 1e-300, hi), method="bvls").x
    np.testing.assert_allclose(model_at(np.diag(diagonal), gradient, lo=lo, hi=hi).step(), best, atol=1e-9)
    step = model_at(positive(rng, 5), gradient, lo=lo, hi=hi).step()
    assert np.all((step >= lo) & (step <= hi))
    assert gradient @ step < 0


def test_a_coordinate_pushed_against_its_bound_stays_and_the_others_take_newtons_step():
    hessian, gradient = positive(np.random.default_rng(0), 3), np.array([1.0, -0.3, 0.2])
    step = model_at(hessian, gradient, lo=[0.0, -np.inf, -np.inf]).step()
    assert step[0] == 0
    np.testing.assert_allclose(step[1:], -np.linalg.solve(hessian[1:, 1:], gradient[1:]), rtol=1e-9)


def test_curvature_that_is_not_positive_counts_by_its_size():
    hessian, gradient = np.diag([4.0, -1.0]), np.array([1.0, 1.0])
    np.testing.assert_allclose(model_at(hessian, gradient).step(), [-0.25, -1.0])
    falls = model_at(hessian, np.zeros(2)).falling(1.0)
    assert abs(falls[1]) == pytest.approx(1.0)
    assert falls[0] == 0
    assert model_at(np.diag([4.0, 1.0]), np.zeros(2)).falling(1.0) is None
    inward = model_at(hessian, np.zeros(2), lo=[-np.inf, 0.0]).falling(1.0)  # away from the bound that it is at
    assert inward[1] > 0
    assert model_at(hessian, np.array([0.0, 1.0]), lo=[-np.inf, 0.0]).falling(1.0) is None  # held by its bound


def test_units_are_those_of_the_curvature_however_it_is_scaled():
    rng = np.random.default_rng(0)
    hessian, scale = positive(rng, 4), 10.0 ** rng.integers(-9, 10, 4)
    np.testing.assert_allclose(units_of(hessian), np.diag(hessian) ** -0.5)
    np.testing.assert_allclose(units_of(hessian * np.outer(scale, scale)) * scale, units_of(hessian))
    saddle = units_of(np.array([[2.0, 1.0], [1.0, 0.0]]))  # the second curves only with the first
    assert np.all(np.isfinite(saddle) & (saddle > 0))
    assert np.isinf(units_of(np.diag([1.0, 0.0]))[1])


def test_secants_correct_the_hessian_along_their_steps():
    rng = np.random.default_rng(1)
    hessian, other = positive(rng, 4), positive(rng, 4)
    step = rng.normal(size=4)
    change = other @ step
    secants = Secants.none(3, 4).with_one(step, change)
    np.testing.assert_allclose(model_at(hessian, -change).step(secants), step, rtol=1e-9)  # the secant condition
    unknown = model_at(None, -change, unit=np.ones(4))
    np.testing.assert_allclose(unknown.step(secants), step, rtol=1e-9)
    backward = Secants.none(3, 4).with_one(step, -change)  # negative curvature teaches nothing
    np.testing.assert_allclose(model_at(hessian, -change).step(backward), model_at(hessian, -change).step())
    for _ in range(5):
        secants = secants.with_one(rng.normal(size=4), rng.normal(size=4))
    assert secants.count == 3
    assert secants.without().count == 0


def test_which_hessian_explains_the_last_change():
    rng = np.random.default_rng(2)
    exact, straight, unit = positive(rng, 3), positive(rng, 3), np.ones(3)
    step = rng.normal(size=3)
    asked = lambda news, hessian=exact: explaining(hessian, straight, unit, news, EPS)
    assert asked([(step, exact @ step)]) == (exact, [])
    best, left = asked([(step, straight @ step)])
    assert best is straight
    assert left == []
    jump = (step, 100 * exact @ step)
    assert asked([jump])[1] == [jump]
    assert asked([])[0] is exact
    assert asked([], -exact)[0] is straight  # a first step does not follow curvature downwards


@pytest.mark.parametrize("share", [0.5, 0.1, 1e-3])
def test_a_shorter_way_ends_lower_than_the_whole_way_cut(share):
    hessian, gradient = positive(np.random.default_rng(3), 4), np.array([1.0, -2.0, 0.5, 3.0])
    model = model_at(hessian, gradient)
    whole, size = model.step(), lambda step: np.linalg.norm(step / model.unit)
    short = model.shorter(whole, share, None)
    assert share / 16 * size(whole) <= size(short) <= share * size(whole)
    value = lambda step: gradient @ step + step @ hessian @ step / 2
    assert value(short) < value(whole * size(short) / size(whole))
