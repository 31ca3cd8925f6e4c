"""The few directions a policy varies along: from gradients of a rough fit, refined with polynomials in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np
from jaxtyping import Float

from ..basis import Rotated, TotalDegree
from ..programs import put
from .fits import SETTLED, Responses, nested_errors, orthonormalising

_TRIALS = 8  # steps of Gauss and Newton that are tried, at each degree
_DAMPING, _HARDER = 1e-3, 10.0  # relative to the mean curvature; by which factor it changes
_OUTSIDE = 5  # contexts on either side that count as lying on the faces of the cube
_DEGREES = (2, 3, 5, 7, 9)  # of the polynomials, in turn: low ones find the way
_MOST_DIRECTIONS = 3


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
    def k(self) -> int:
        """How many directions there are."""
        return self.axes.shape[1]

    @property
    def size(self) -> int:
        """How many functions there are."""
        return comb(self.degree + self.k, self.degree)

    def place(self, u: np.ndarray) -> Float[np.ndarray, "n k"]:
        """Contexts in the cube."""
        return np.clip(u @ self.axes + self.shift, -1, 1)

    def features(self, u: np.ndarray, along: int | None = None) -> Float[np.ndarray, "n N"]:
        """Products of Chebyshev polynomials by total degree, or their derivatives along one direction of the cube."""
        z, members = self.place(u), TotalDegree().table(self.degree + 1, self.k)
        phi = np.ones((len(z), len(members)))
        for j in range(self.k):
            powers = np.polynomial.chebyshev.chebvander(z[:, j], self.degree)
            if j == along:
                powers = powers[:, :-1] @ np.polynomial.chebyshev.chebder(np.eye(self.degree + 1))
            phi *= powers[:, members[:, j]]
        return phi

    def kept_in(self, recipe: Rotated) -> Rotated:
        """A recipe with these directions."""
        axes, shift = put((np.asarray(self.axes), np.asarray(self.shift)))
        return replace(recipe, axes=axes, shift=shift)


class _Fit:
    """Polynomials along some directions, fitted: `left` is the square of what they leave."""

    def __init__(self, rows: Responses, directions: np.ndarray, degree: int):
        turned = np.linalg.qr(directions)[0]
        z = rows.u @ turned
        out = min(_OUTSIDE / len(z), 0.25)
        lo, hi = np.quantile(z, (out, 1 - out), axis=0)
        wide = np.where(hi > lo, hi - lo, 1.0)
        self.rows, self.place = rows, Projected(2 * turned / wide, -(lo + hi) / wide, degree)
        table = self.place.features(rows.u)
        forth = orthonormalising(table, rows.shares)
        self.q = rows.root * (table @ forth)
        along = self.q.T @ (rows.root * rows.t)
        self.coefficients = forth @ along
        self.residual = rows.root * rows.t - self.q @ along
        self.left = float(np.sum(self.residual**2))

    def model(self) -> tuple[np.ndarray, np.ndarray]:
        """The Gauss-Newton matrix and the descent in the axes, with the polynomials following along."""
        rows, (d, k) = self.rows, self.place.axes.shape
        inside = np.abs(self.place.place(rows.u)) < 1
        slopes = [inside[:, [j]] * (self.place.features(rows.u, j) @ self.coefficients) for j in range(k)]
        matrix, descent = np.zeros((k * d, k * d)), np.zeros(k * d)
        for component in range(rows.t.shape[1]):
            table = np.concatenate([slope[:, component, None] * rows.u for slope in slopes], axis=1) * rows.root
            table = table - self.q @ (self.q.T @ table)
            matrix += table.T @ table
            descent += table.T @ self.residual[:, component]
        return matrix, descent

    def refined(self) -> "_Fit":
        """By the method of Levenberg and Marquardt."""
        here, damping, (matrix, descent) = self, _DAMPING, self.model()
        d, k = self.place.axes.shape
        for _ in range(_TRIALS):
            unit = np.trace(matrix) / len(matrix) * np.eye(len(matrix))
            if not unit[0, 0] > 0:
                break
            step = np.linalg.solve(matrix + damping * unit, descent).reshape(k, d).T
            ahead = _Fit(self.rows, here.place.axes + step, self.place.degree)
            if not ahead.left < here.left:
                damping *= _HARDER
                continue
            gain, here, damping = 1 - ahead.left / here.left, ahead, damping / _HARDER
            if gain < SETTLED:
                break
            matrix, descent = here.model()
        return here


def fit_directions(rows: Responses, outer: np.ndarray, k: int, degrees: Sequence[int]) -> Iterator[Projected]:
    """Directions with polynomials of growing degree, from the leading ones of the gradients' outer product."""
    directions = np.linalg.eigh(outer)[1][:, ::-1][:, :k]
    for degree in degrees:
        found = _Fit(rows, directions, degree).refined().place
        directions = found.axes
        yield found


def refined(rows: Responses, place: Projected) -> Projected:
    """The same polynomials, with directions refined on other rows."""
    return _Fit(rows, place.axes, place.degree).refined().place


def degrees_up_to(k: int, most: int) -> tuple[int, ...]:
    """The degrees tried with ``k`` directions where so many functions are supported."""
    return tuple(degree for degree in _DEGREES if comb(degree + k, k) <= most)


def tune_directions(
    fitted: Responses, held: Responses, outer: np.ndarray, most: int
) -> tuple[Projected, Float[np.ndarray, " m"]] | None:
    """How many directions and which degree err least held out (another direction must be worth a standard error); and
    the squared errors. ``None`` where the samples support no degree."""
    best = None
    for k in range(1, min(_MOST_DIRECTIONS, fitted.u.shape[1] - 1) + 1):
        least = np.inf
        for place in fit_directions(fitted, outer, k, degrees_up_to(k, most)):
            errors = nested_errors(fitted, held, (place.features(fitted.u), place.features(held.u)), [place.size])[0]
            error = float(errors @ held.shares)
            if best is None or error + (k > best[0].k) * held.error_of(errors - best[1]) < best[1] @ held.shares:
                best = (place, errors)
            if error > least:  # more functions fit noise
                break
            least = error
    return best
