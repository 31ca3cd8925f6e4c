"""The few directions a policy varies along: from gradients of a rough fit, refined with polynomials in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from jaxtyping import Float, Int

from ..basis import TotalDegree
from .responses import Responses, nested_errors

_STEPS = 6  # of Gauss and Newton, at each degree
_DAMPING, _HARDER, _EASIER, _TRIES = 1e-3, 10.0, 0.2, 4  # relative to the mean curvature; how it changes
_OUTSIDE = 5  # contexts on either side that count as lying on the faces of the cube
_DEGREE_ROWS = 12_288  # at most, while degrees are tuned
_STAYING = 1e-3  # relative gain of a step below which directions stay
_DEGREES = (2, 3, 5, 7, 9)  # of the polynomials, in turn: low ones find the way
MOST_DIRECTIONS = 3


@dataclass(frozen=True)
class Projected:
    """Polynomials of total degree up to `degree` in ``u @ axes + shift``, where observed contexts fill the cube.

    All but a few of them: those last ones, and contexts further out, count as lying on its faces, so that no polynomial
    grows where hardly any data hold it.
    """

    axes: Float[np.ndarray, "d k"]
    shift: Float[np.ndarray, " k"]
    degree: int

    @property
    def size(self) -> int:
        """How many functions that are."""
        return comb(self.degree + self.axes.shape[1], self.degree)

    def features(self, u: np.ndarray) -> Float[np.ndarray, "n N"]:
        return _products(self.place(u), _by_total_degree(self.degree, self.axes.shape[1]))

    def place(self, u: np.ndarray) -> Float[np.ndarray, "n k"]:
        """Contexts in the cube."""
        return np.clip(u @ self.axes + self.shift, -1, 1)


def _by_total_degree(degree: int, k: int) -> Int[np.ndarray, "N k"]:
    return TotalDegree().table(degree + 1, k)


def _products(z: np.ndarray, members: np.ndarray, along: int | None = None) -> np.ndarray:
    """Products of Chebyshev polynomials, or their derivatives along one coordinate."""
    phi, top = np.ones((len(z), len(members))), int(members.max())
    for j in range(z.shape[1]):
        powers = np.polynomial.chebyshev.chebvander(z[:, j], top)
        if j == along:
            slopes = np.polynomial.chebyshev.chebder(np.eye(top + 1))
            powers = powers[:, :top] @ slopes if top else np.zeros_like(powers)
        phi *= powers[:, members[:, j]]
    return phi


class _Fit:
    """Polynomials along some directions, fitted: `left` is the square of what they leave."""

    def __init__(self, rows: Responses, directions: np.ndarray, degree: int):
        turned = np.linalg.qr(directions)[0]
        z = rows.u @ turned
        out = min(_OUTSIDE / len(z), 0.25)
        lo, hi = np.quantile(z, (out, 1 - out), axis=0)
        wide = np.where(hi > lo, hi - lo, 1.0)
        self.place = Projected(2 * turned / wide, -(lo + hi) / wide, degree)
        self.rows, self.members = rows, _by_total_degree(degree, directions.shape[1])
        self.q, triangle = np.linalg.qr(rows.root * self.place.features(rows.u))
        pivots = np.abs(np.diag(triangle))
        inverse = np.linalg.inv(triangle) if pivots.min() > 1e-12 * pivots.max() else np.linalg.pinv(triangle)
        along = self.q.T @ (rows.root * rows.t)
        self.coefficients = inverse @ along
        self.residual = rows.root * rows.t - self.q @ along
        self.left = float(np.sum(self.residual**2))

    def model(self) -> tuple[np.ndarray, np.ndarray]:
        """The Gauss-Newton matrix and the descent in the axes, with the polynomials following along."""
        rows, (d, k) = self.rows, self.place.axes.shape
        z = self.place.place(rows.u)
        inside = np.abs(z) < 1
        slopes = [inside[:, [j]] * (_products(z, self.members, j) @ self.coefficients) for j in range(k)]
        matrix, descent = np.zeros((k * d, k * d)), np.zeros(k * d)
        for component in range(rows.t.shape[1]):
            table = np.concatenate([slope[:, component, None] * rows.u for slope in slopes], axis=1) * rows.root
            table = table - self.q @ (self.q.T @ table)
            matrix += table.T @ table
            descent += table.T @ self.residual[:, component]
        return matrix, descent

    def refined(self) -> "_Fit":
        here, damping = self, _DAMPING
        d, k = self.place.axes.shape
        for _ in range(_STEPS):
            matrix, descent = here.model()
            unit = np.trace(matrix) / len(matrix) * np.eye(len(matrix))
            if not unit[0, 0] > 0:
                return here
            for _ in range(_TRIES):
                step = np.linalg.solve(matrix + damping * unit, descent).reshape(k, d).T
                ahead = _Fit(self.rows, here.place.axes + step, self.place.degree)
                if ahead.left < here.left:
                    break
                damping *= _HARDER
            else:
                return here
            gain, here, damping = 1 - ahead.left / here.left, ahead, damping * _EASIER
            if gain < _STAYING:
                break
        return here


def fit_directions(rows: Responses, outer: np.ndarray, k: int, degrees: Sequence[int]) -> Iterator[Projected]:
    """Directions with polynomials of growing degree, from the leading ones of the gradients' outer product."""
    directions = np.linalg.eigh(outer)[1][:, ::-1][:, :k]
    for degree in degrees:
        found = _Fit(rows, directions, degree).refined()
        directions = found.place.axes
        yield found.place


def refined(rows: Responses, place: Projected) -> Projected:
    """The same polynomials, with directions refined on other rows."""
    return _Fit(rows, place.axes, place.degree).refined().place


def degrees_up_to(k: int, most: int) -> tuple[int, ...]:
    """The degrees tried with ``k`` directions where so many functions are supported."""
    return tuple(degree for degree in _DEGREES if comb(degree + k, k) <= most)


def tune_directions(rows: Responses, outer: np.ndarray, most: int) -> tuple[Projected, float] | None:
    """How many directions and which degree err least held out (more directions by a standard error); and that error."""
    fitted, held = rows.to_tune(_DEGREE_ROWS)
    best = None
    for k in range(1, min(MOST_DIRECTIONS, rows.u.shape[1] - 1) + 1):
        least = np.inf
        for found in fit_directions(fitted, outer, k, degrees_up_to(k, most)):
            tables = found.features(fitted.u), found.features(held.u)
            rows_left = nested_errors(fitted, held, tables, [found.size])[0]
            error = float(rows_left @ held.shares)
            better = best is None
            if best is not None:
                further = k > best[0].axes.shape[1]  # another direction must be worth a standard error
                slack = held.error_of(rows_left - best[1]) if further else 0.0
                better = error + slack < float(best[1] @ held.shares)
            if better:
                best = (found, rows_left)
            if error > least:  # more functions fit noise
                break
            least = error
    return None if best is None else (best[0], float(best[1] @ held.shares))
