"""Rows that repeat others: copies count once, independent draws that happen to be equal do not."""

import numpy as np
import pytest

import cobilevel as cb
from cobilevel.problem import counted_once

INTERVAL = cb.Interval(0.0, 1.0)


def parsed(xi, eta, weights=None):
    return cb.Samples(xi, eta, weights).parsed()


def test_copies_count_once_with_a_weight_in_the_order_in_which_they_came():
    own = np.random.default_rng(0).uniform(size=100)
    xi = np.concatenate([own[:3], own[[0]], own[3:], own[[1, 0]]])
    once, copies = counted_once(parsed(xi, {"a": xi**2, "b": np.stack([xi, -xi], axis=1)}), INTERVAL)
    assert copies == 3
    assert np.allclose(once.xi, own, atol=1e-7)
    assert np.allclose(once.weights / once.weights[2], [3, 2, *np.ones(98)])


def test_weights_of_copies_add_up():
    own = np.random.default_rng(0).uniform(size=100)
    xi, weights = np.concatenate([own, own[:2]]), np.arange(1.0, 103.0)
    once, copies = counted_once(parsed(xi, xi, weights), INTERVAL)
    assert copies == 2
    assert np.allclose(once.weights / once.weights[2], [102 / 3, 104 / 3, *np.arange(3, 101) / 3], rtol=1e-5)


@pytest.mark.parametrize("noise", ["few values", "other values", "none"])
def test_draws_that_are_equal_by_chance_stay(noise):
    rng = np.random.default_rng(0)
    xi = np.round(rng.uniform(size=400), 2)  # hours, as data bases keep them
    eta = {"few values": rng.integers(0, 3, 400), "other values": rng.normal(size=400), "none": None}[noise]
    samples = parsed(xi, eta)
    assert counted_once(samples, INTERVAL) == (samples, 0)


def test_one_equal_pair_among_few_contexts_is_chance():
    rng = np.random.default_rng(0)
    xi, eta = rng.integers(0, 3, 60) / 2, rng.normal(size=60)
    eta[np.flatnonzero(xi == 0.5)[:2]] = 0.25
    samples = parsed(xi, eta)
    assert counted_once(samples, INTERVAL) == (samples, 0)


def test_categories_are_not_looked_at():
    xi = np.repeat(np.arange(5.0), 20)
    samples = parsed(xi, xi)
    assert counted_once(samples, cb.Finite(np.arange(5.0))) == (samples, 0)


def test_weights_and_repeated_rows_give_one_answer():
    rng = np.random.default_rng(1)
    xi, eta, often = rng.uniform(size=300), rng.normal(size=300), rng.integers(1, 4, 300)
    order = rng.permutation(np.repeat(np.arange(300), often))
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - 1 - xi) ** 2 / 2,
        lambda x, y, xi, eta: (y - x * (1 + xi) - eta) ** 2 / 2,
        x0=0.0,
        y0=0.0,
        domain=INTERVAL,
    )
    weighted = cb.solve(problem, cb.Samples(xi, eta, often.astype(float)))
    repeated = cb.solve(problem, cb.Samples(xi[order], eta[order]))
    assert np.allclose(weighted.x, repeated.x, rtol=1e-6)
    assert np.allclose(weighted.standard_error, repeated.standard_error, rtol=1e-5)
    assert f"{len(order) - 300} rows are copies" in repeated.choices["samples"]
