"""Arguments that are of another kind than asked for, or no number: refused when the object is made, by name."""

import numpy as np
import pytest

import cobilevel as cb
from problems import LINE, scalar

NOT_POSITIVE = ["no", np.nan, -1.0, True, np.inf, [1.0], 1j]
POSITIVE = {
    "Newton: tolerance": lambda v: cb.Newton(tolerance=v),
    "Orthonormal: tolerance": lambda v: cb.Orthonormal(cb.Chebyshev(3), v),
    "SOBA: inner": lambda v: cb.SOBA(inner=v),
    "SOBA: outer": lambda v: cb.SOBA(outer=v),
    "PolynomialDecay: value": lambda v: cb.PolynomialDecay(v, 0.5),
    "PolynomialDecay: offset": lambda v: cb.PolynomialDecay(0.1, 0.5, v),
    "Cosine: steps": lambda v: cb.Cosine(0.1, v),
    "Neural: rate": lambda v: cb.Neural(4, rate=v),
    "smoothing": lambda v: scalar(smoothing=v),
}
OTHERS = {
    "lower_noise": (lambda v: scalar(lower_noise=v), ["no", 0, 1, np.nan, [True]]),
    "Orthonormal: tolerance": (lambda v: cb.Orthonormal(cb.Chebyshev(3), v), [0, 1.0, 3]),
    "StocBiO: kind": (lambda v: cb.StocBiO(kind=v), ["mean", None, 3, ["sum"]]),
    "SOBA: batch": (lambda v: cb.SOBA(batch=v), [None, 0, 2.5, True, "all"]),
    "StocBiO: inner_steps": (lambda v: cb.StocBiO(inner_steps=v), [None, 0, 2.5]),
    "SOBA: average": (lambda v: cb.SOBA(average=v), [np.nan, -0.1, 1.1, [0.5]]),
    "SOBA: tolerance": (lambda v: cb.SOBA(tolerance=v), [np.nan, -0.1, np.inf, [0.5]]),
    "PolynomialDecay: power": (lambda v: cb.PolynomialDecay(0.1, v), [np.nan, np.inf, [0.5], None]),
    "Simplex: total": (lambda v: cb.Simplex(v), [np.nan, 0, -1.0, "a", [1.0]]),
    "TruncatedNormal: std": (lambda v: cb.TruncatedNormal(LINE, 0.5, v), [np.nan, 0.0, -1.0, "a", True]),
}


@pytest.mark.parametrize("name", POSITIVE)
def test_what_must_be_a_positive_number(name):
    for value in NOT_POSITIVE:
        with pytest.raises((TypeError, ValueError), match=f"{name.split(':')[0]}|a step size|positive"):
            POSITIVE[name](value)
    POSITIVE[name](0.5)


@pytest.mark.parametrize("name", OTHERS)
def test_what_must_be_something_else(name):
    make, values = OTHERS[name]
    for value in values:
        with pytest.raises((TypeError, ValueError), match=name):
            make(value)


def test_what_is_right_is_taken():
    assert scalar(lower_noise=np.bool_(True)).lower_noise is True
    assert scalar(lower_noise=None).lower_noise is None
    assert cb.StocBiO(terms=None).terms is None
    assert float(cb.PolynomialDecay(0.1, -1 / 7).power) < 0
    assert float(cb.SOBA(tolerance=0).tolerance) == 0
