"""Two-stage least squares as a bilevel problem with default settings, against linearmodels: what the benchmark prints.

JAX is in single precision here, as it is by default.
"""

import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from cobilevel.precision import double

_PATH = Path(__file__).parents[2] / "benchmarks" / "instruments.py"
_SPEC = importlib.util.spec_from_file_location("instruments", _PATH)
iv = importlib.util.module_from_spec(_SPEC)
sys.modules["instruments"] = iv  # where dataclasses look themselves up
_SPEC.loader.exec_module(iv)


@pytest.fixture(autouse=True)
def single():
    """JAX as a user finds it."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def test_schooling_by_distance_to_college():
    data = iv.Regression.of(*iv.CARD)
    found = iv.compare(data, data.linear())
    assert found.solution.x.dtype == np.float32
    assert found.coefficients < 1e-8
    assert found.errors < 1e-6
    assert not any(found.solution.uncertainty.notes)


@pytest.mark.parametrize("words", [iv.FATHER, iv.MOTHER])
def test_schooling_by_that_of_a_parent(words):
    data = iv.Regression.of(*words)
    found = iv.compare(data, data.linear())
    assert found.coefficients < 1e-8
    assert found.errors < 1e-6


@pytest.mark.thorough
def test_two_instruments_for_one_regressor():
    data = iv.Regression.of(*iv.PARENTS)
    found = iv.compare(data, data.linear())
    assert found.coefficients < 1e-8
    assert found.sandwich < 1e-6  # of the formula that does not take both instruments to be valid
    assert 1e-4 < found.errors < 5e-3  # of the one that does


@pytest.mark.thorough
def test_insurance_by_social_security():
    data = iv.Regression.of(*iv.DRUGS)
    found = iv.compare(data, data.linear())
    assert found.coefficients < 1e-8
    assert found.errors < 1e-6
    through = iv.compare(data, *iv.with_splines(data, 4))
    assert through.coefficients < 1e-7
    assert through.sandwich < 1e-6


@pytest.mark.thorough
def test_splines_of_an_instrument():
    data = iv.linear_first_stage(n=400, controls=1, strength=1.5)
    found = iv.compare(data, *iv.with_splines(data, 3))
    assert found.coefficients < 1e-8
    assert found.sandwich < 1e-6


def test_splines_are_those_of_scipy():
    from scipy.interpolate import BSpline

    z = np.linspace(0.0, 2.0, 57)
    with double():
        found = np.asarray(iv.cubic_splines(jax.numpy.asarray(z), 0.0, 2.0, 4))
    knots = np.concatenate([np.zeros(3), np.linspace(0, 2, 5), np.full(3, 2.0)])
    assert found == pytest.approx(BSpline.design_matrix(z, knots, 3).toarray()[:, 1:], abs=1e-13)


@pytest.mark.parametrize("case", ["simulated", "card: nearc4"])
def test_a_basis_is_chosen_where_the_first_stage_is_linear(case):
    data = iv.linear_first_stage(n=600) if case == "simulated" else iv.Regression.of(*iv.ALONE[case])
    solution, told = data.solve(), data.reference()
    apart = np.abs(np.asarray(solution.full_parts()[0]) - told.params.to_numpy())
    assert np.all(apart < 0.1 * told.std_errors.to_numpy())
    assert solution.standard_error == pytest.approx(told.std_errors.to_numpy(), rel=0.1)


@pytest.mark.thorough
def test_many_controls_are_not_held_against_an_instrument():
    """Of fourteen functions twelve serve the controls: with a first-stage F of 14, noise of all would be as large."""
    data = iv.linear_first_stage(seed=3, n=500, controls=12, strength=0.35)
    found = iv.compare(data, data.linear())
    first = np.hstack([data.exogenous, data.instruments])
    left = data.endogenous[:, 0] - first @ np.linalg.lstsq(first, data.endogenous[:, 0], rcond=None)[0]
    aside = data.instruments[:, 0]
    aside = aside - data.exogenous @ np.linalg.lstsq(data.exogenous, aside, rcond=None)[0]
    strength = (aside @ data.endogenous[:, 0]) ** 2 / (aside @ aside) / np.mean(left**2)
    assert 10 < strength < 20
    assert found.coefficients < 1e-8
    assert found.errors < 1e-4


def test_an_instrument_without_effect_determines_nothing():
    data = iv.linear_first_stage(seed=1, n=428, controls=2, strength=0.0)
    solution = data.solve(data.linear())
    assert np.isinf(solution.standard_error[-1])
    assert "not determined" in repr(solution)
