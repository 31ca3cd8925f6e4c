"""Regression of responses on functions of a kernel, whose gradients show which coordinates and directions matter; and
on polynomials along a few directions, which are refined with them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import comb
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..basis import (
    METRICS,
    Chebyshev,
    KernelFeatures,
    Rotated,
    TotalDegree,
    kernel_profile,
    kernel_slope,
    squared_distances,
)
from .fits import MULTIPLICATIONS, SETTLED, Responses, nested_errors, orthonormalising

FEWEST_DIMENSIONS = 4  # from which on coordinates are too many for all their products
COUNTS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # functions of a kernel
DEGREES = (2, 3, 5, 7, 9)  # of polynomials along directions, in turn: low ones find the way
_VISIBLE = 1e-8  # eigenvalue of a kernel, relative to the largest: below, functions drown in rounding
_PENALTIES = 10.0 ** np.arange(-6, 1.6, 0.5)  # tried, relative to the mean square of a function
METRIC_ROWS = MULTIPLICATIONS // 8 // COUNTS[-1] ** 2  # while metrics are compared, by some eight regressions


# -- kernels


def kernel_functions(recipe: KernelFeatures, u: np.ndarray, landmarks: int | None = None) -> KernelFeatures:
    """With the functions of a kernel whose `axes` are known, of mean square one at the landmarks, which are drawn from
    the contexts: four for each function unless stated, within 300 and 512. Those that rounding hides are left out."""
    landmarks = int(np.clip(4 * recipe.n, 300, 512)) if landmarks is None else landmarks
    points = u[np.random.default_rng(recipe.seed).permutation(len(u))[:landmarks]] @ recipe.axes
    values, vectors = np.linalg.eigh(kernel_profile(recipe.kernel, squared_distances(points, points)))
    kept = np.flatnonzero(values > _VISIBLE * values[-1])[::-1][: recipe.n - 1]
    return replace(recipe, landmarks=points, table=vectors[:, kept] / values[kept] * len(points) ** 0.5)


def _scaled(recipe: KernelFeatures, metric: str, axes: np.ndarray, scale: float) -> KernelFeatures:
    """With axes of trace ``d``, over a scale."""
    return replace(recipe, metric=metric, axes=axes / scale, scale=scale)


class _Ridge(NamedTuple):
    """A ridge regression on functions of a kernel: the error expected by generalised cross-validation, what it fits,
    and the mean of the outer products of its gradients."""

    expected: float
    recipe: KernelFeatures
    fitted: Float[np.ndarray, "n k"]
    outer: Float[np.ndarray, "d d"]


def _ridge(rows: Responses, recipe: KernelFeatures) -> _Ridge:
    made: Any = kernel_functions(replace(recipe, n=COUNTS[-1] + 1), rows.u, COUNTS[-1])
    phi, middle = made.on_cube(rows.u)[:, 1:], rows.shares @ rows.t
    phi, target = phi - rows.shares @ phi, rows.root * (rows.t - middle)
    table = rows.root * phi
    squares, vectors = np.linalg.eigh(table.T @ table)  # rounding is below any noise here
    seen = squares > 1e-14 * squares[-1]
    squares, vectors = squares[seen], vectors[:, seen]
    along = vectors.T @ (table.T @ target) / np.sqrt(squares)[:, None]
    best, mixed = np.inf, along
    for penalty in _PENALTIES:
        kept = squares / (squares + penalty)
        misfit = float(np.sum(target**2) - np.sum((along**2).T * (2 * kept - kept**2)))
        expected = misfit / (1 - (1 + kept.sum()) / len(rows)) ** 2 if kept.sum() < len(rows) / 2 else np.inf
        if expected < best:
            best, mixed = expected, along * (kept / np.sqrt(squares))[:, None]
    coefficients = vectors @ mixed
    outer, z = np.zeros((len(made.axes),) * 2), rows.u @ made.axes
    slopes = 2 * kernel_slope(recipe.kernel, squared_distances(z, made.landmarks))
    for weights in (made.table @ coefficients).T:
        steep = z * (slopes @ weights)[:, None] - slopes @ (weights[:, None] * made.landmarks)
        steep = (steep @ made.axes.T) * rows.root
        outer += steep.T @ steep
    return _Ridge(best, recipe, middle + phi @ coefficients, outer)


def _axes(outer: np.ndarray, metric: str) -> np.ndarray:
    """The axes of a metric, normalised to the trace of the isotropic one."""
    outer = outer * len(outer) / max(np.trace(outer), np.finfo(float).tiny)
    if metric == "coordinates":
        return np.diag(np.sqrt(np.diag(outer)))
    values, vectors = np.linalg.eigh(outer)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def _median_distance(z: np.ndarray) -> float:
    """Between 200 of the places."""
    return float(np.sqrt(np.median(squared_distances(z[:200:2], z[1:200:2])))) or 1.0


def fit_kernel(
    rows: Responses, recipe: KernelFeatures, metrics: Sequence[str] = ("isotropic",)
) -> tuple[list[KernelFeatures], np.ndarray]:
    """The kernel with each of some metrics, at the best of a few scales unless the recipe has one; and the mean outer
    product of the gradients of the isotropic fit."""

    def best(rows: Responses, metric: str, axes: np.ndarray, ratios: Sequence[float]) -> _Ridge:
        """The regression that is expected to err least; `ratios`: the scales tried, in median distances."""
        middle = _median_distance(rows.u @ axes)
        scales = [ratio * middle for ratio in ratios] if recipe.scale is None else [recipe.scale]
        tried = (_ridge(rows, _scaled(recipe, metric, axes, scale)) for scale in scales)
        return min(tried, key=lambda ridge: ridge.expected)

    first = best(rows, "isotropic", np.eye(rows.u.shape[1]), (0.7, 1.4, 2.8))
    rows, fitted = rows.leading(first.fitted), []
    for metric in metrics:
        ridge = first
        learned = metric != "isotropic" and np.trace(first.outer) > 0
        for ratios in ((1.0,), (0.7, 1.4)) if learned else ():  # gradients of a fit give the metric of the next
            ridge = best(rows, metric, _axes(ridge.outer, metric), ratios)
        fitted.append(replace(ridge.recipe, metric=metric))
    return fitted, first.outer


def tune_kernel(
    rows: Responses, counts: Sequence[int], recipe: KernelFeatures
) -> tuple[KernelFeatures, float, np.ndarray]:
    """The metric, the scale (unless the recipe has them) and the number of functions, of `counts`, that err least on
    rows held out; that error, and the mean outer product of the gradients of a first fit."""

    def best_count(recipe: KernelFeatures, most: int) -> tuple[KernelFeatures, float]:
        fitted, held = rows.to_tune(most)
        made = kernel_functions(replace(recipe, n=max(counts)), fitted.u)
        errors = nested_errors(fitted, held, (made.on_cube(fitted.u), made.on_cube(held.u)), counts) @ held.shares
        return replace(recipe, n=counts[int(np.argmin(errors))]), float(errors.min())

    metrics = METRICS if recipe.metric is None else (recipe.metric,)
    tried, outer = fit_kernel(rows.to_tune(METRIC_ROWS)[0], recipe, metrics)
    best = min((best_count(one, METRIC_ROWS) for one in tried), key=lambda pair: pair[1])
    if len(rows) > METRIC_ROWS and len(counts) > 1:  # more rows are worth more functions
        best = best_count(best[0], len(rows))
    return *best, outer


def refreshed(rows: Responses, recipe: KernelFeatures) -> KernelFeatures:
    """A tuned kernel with the metric learned once more from all rows; the scale stays the same share of distances."""
    metric = recipe.metric
    if metric == "isotropic" or not np.trace(outer := _ridge(rows, recipe).outer) > 0:
        return recipe
    axes = _axes(outer, metric)
    return _scaled(recipe, metric, axes, _median_distance(rows.u @ axes) / _median_distance(rows.u @ recipe.axes))


# -- directions


def along_directions(axes: Any, degree: int) -> Rotated:
    """Polynomials of total degree up to `degree` in the coordinates along some directions."""
    k = axes.shape[1]
    return replace(Rotated(k, Chebyshev(degree + 1, index=TotalDegree())), axes=axes, shift=np.zeros(k))


def _slopes(place: Rotated, u: np.ndarray, direction: int) -> Float[np.ndarray, "n N"]:
    """The derivatives of its polynomials along one direction of the cube that it maps contexts into."""
    z, family = place.projected(u), place.basis
    members = TotalDegree().table(family.n, place.k)  # pyright: ignore[reportAttributeAccessIssue]
    phi = np.ones((len(z), len(members)))
    for j in range(place.k):
        powers = np.polynomial.chebyshev.chebvander(z[:, j], members.max())
        if j == direction:
            powers = powers[:, :-1] @ np.polynomial.chebyshev.chebder(np.eye(1 + members.max()))
        phi *= powers[:, members[:, j]]
    return phi


class _PolynomialFit:
    """Polynomials along the directions of `place`, fitted where contexts fill the cube; `left` is the square of what
    they leave.

    `outside`: how many contexts on either side count as lying on the faces, so that no polynomial grows where hardly
    any data hold it.
    """

    def __init__(self, rows: Responses, place: Rotated, outside: int = 5):
        turned = np.linalg.qr(np.asarray(place.axes))[0]
        z = rows.u @ turned
        out = min(outside / len(z), 0.25)
        lo, hi = np.quantile(z, (out, 1 - out), axis=0)
        wide = np.where(hi > lo, hi - lo, 1.0)
        self.rows, self.place = rows, replace(place, axes=2 * turned / wide, shift=-(lo + hi) / wide)
        table = self.place.on_cube(rows.u)
        forth = orthonormalising(table, rows.shares)
        self.q = rows.root * (table @ forth)
        along = self.q.T @ (rows.root * rows.t)
        self.coefficients = forth @ along
        self.residual = rows.root * rows.t - self.q @ along
        self.left = float(np.sum(self.residual**2))

    def model(self) -> tuple[np.ndarray, np.ndarray]:
        """The Gauss-Newton matrix and the descent in the axes, with the polynomials following along."""
        rows, d, k = self.rows, self.rows.u.shape[1], self.place.k
        inside = np.abs(self.place.projected(rows.u)) < 1
        slopes = [inside[:, [j]] * (_slopes(self.place, rows.u, j) @ self.coefficients) for j in range(k)]
        matrix, descent = np.zeros((k * d, k * d)), np.zeros(k * d)
        for component in range(rows.t.shape[1]):
            table = np.concatenate([slope[:, component, None] * rows.u for slope in slopes], axis=1) * rows.root
            table = table - self.q @ (self.q.T @ table)
            matrix += table.T @ table
            descent += table.T @ self.residual[:, component]
        return matrix, descent


def refined(rows: Responses, place: Rotated, trials: int = 8, damping: float = 1e-3, harder: float = 10.0) -> Rotated:
    """The same polynomials along refined directions, by the method of Levenberg and Marquardt; `damping` is relative to
    the mean curvature, and changes by the factor `harder`."""
    here = _PolynomialFit(rows, place)
    matrix, descent = here.model()
    for _ in range(trials):
        unit = np.trace(matrix) / len(matrix) * np.eye(len(matrix))
        if not unit[0, 0] > 0:
            break
        step = np.linalg.solve(matrix + damping * unit, descent).reshape(place.k, -1).T
        ahead = _PolynomialFit(rows, replace(place, axes=here.place.axes + step))
        if not ahead.left < here.left:
            damping *= harder
            continue
        gain, here, damping = 1 - ahead.left / here.left, ahead, damping / harder
        if gain < SETTLED:
            break
        matrix, descent = here.model()
    return here.place


def fit_directions(rows: Responses, outer: np.ndarray, k: int, degrees: Sequence[int]) -> Iterator[Rotated]:
    """Directions with polynomials of growing degree, from the leading ones of the gradients' outer product."""
    axes = np.linalg.eigh(outer)[1][:, ::-1][:, :k]
    for degree in degrees:
        place = refined(rows, along_directions(axes, degree))
        axes = place.axes
        yield place


def degrees_up_to(k: int, most: int) -> tuple[int, ...]:
    """The degrees tried with ``k`` directions if at most `most` functions are supported."""
    return tuple(degree for degree in DEGREES if comb(degree + k, k) <= most)


def tune_directions(
    fitted: Responses, held: Responses, outer: np.ndarray, most: int
) -> tuple[Rotated, Float[np.ndarray, " m"]] | None:
    """How many directions and which degree err least held out (another direction must be worth a standard error); and
    the squared errors. ``None`` where the samples support no degree."""
    best = None
    for k in range(1, min(FEWEST_DIMENSIONS, fitted.u.shape[1])):
        least = np.inf
        for place in fit_directions(fitted, outer, k, degrees_up_to(k, most)):
            tables = place.on_cube(fitted.u), place.on_cube(held.u)
            errors = nested_errors(fitted, held, tables, [tables[0].shape[1]])[0]
            error = float(errors @ held.shares)
            if best is None or error + (k > best[0].k) * held.error_of(errors - best[1]) < best[1] @ held.shares:
                best = (place, errors)
            if error > least:  # more functions fit noise
                break
            least = error
    return best
