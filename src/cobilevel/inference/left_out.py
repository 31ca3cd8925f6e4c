"""Groups of samples left out in turn: noise, and what fitting to few samples does, by solving without them."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from ..lower import solve_at
from .galerkin import NOTICED, Galerkin

FOR_NOISE = 3  # Newton steps without a group: noise is then right to a percent, at corners of a policy too
GROUPS = 20  # left out in turn; with 19 degrees of freedom an interval is 7% wider than with endless ones


def split_rows(count: int, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """The group each row belongs to, at random and of even sizes; fewer groups where there are fewer rows."""
    return rng.permutation(count) % min(GROUPS, count)


def without(shares: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], k: int) -> Float[np.ndarray, " n"]:
    """The shares of rows with one group left out; NaN where nothing is left."""
    kept = shares * (group != k)
    with np.errstate(invalid="ignore"):
        return kept / np.sum(kept)


def jackknife(left_out: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "d d"]:
    """The covariance of an estimate, from its values with one of `k` groups of samples left out at a time."""
    apart = left_out - left_out.mean(axis=0)
    return (len(left_out) - 1) / len(left_out) * apart.T @ apart


def without_each(at: Galerkin, steps: int = 200) -> list[Galerkin]:
    """The reduced problem with one group of samples left out at a time, solved from the solution on all of them, by so
    many Newton steps at most."""
    rng, (lower,), (upper,) = np.random.default_rng(0), at.expansions.lower_pools, at.expansions.upper_pools
    below, above = (split_rows(len(pool.shares), rng) for pool in (lower, upper))
    solved = []
    for k in range(max(below.max(), above.max()) + 1):
        part = at.expansions.with_shares(without(lower.shares, below, k), without(upper.shares, above, k))
        close = 0.0 if part.formed else NOTICED
        point = solve_at(part, at.point.x, at.point.W, at.target, close, steps, at.point.adjoint)
        solved.append(replace(at, expansions=part, point=point))
    return solved


def fitting_bias(whole: np.ndarray, left_out: Float[np.ndarray, "k ..."]) -> np.ndarray:
    """What an estimate has beyond one from endless samples, to first order in how few they are."""
    return (len(left_out) - 1) * (left_out.mean(axis=0) - whole)
